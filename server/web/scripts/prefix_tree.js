// The prefix tree as tiles: one tile a block, from the root on the left; blocks that several paths
// share are as high as all of them. A tile's colour is its format; a frame, that it is in use.

import { el, svg } from "./dom.js";
import { countText } from "./figures.js";

const kLane = 9;      // pixels of a path's height
const kGap = 1;
const kLeaving = 900;  // milliseconds for which an evicted tile is seen

// units: [id, parent, format, grade, used]. Returns: [{ key, format, used, x, y, lanes }].
function layout(units) {
  const children = units.map(() => []);
  const roots = [];
  units.forEach(([, parent], i) => (parent < 0 ? roots : children[parent]).push(i));
  const tiles = [];
  let lane = 0;
  // Not recursive: a path may have a thousand blocks.
  const open = roots.reverse().map((i) => ({ i, depth: 0, entered: -1 }));
  while (open.length > 0) {
    const at = open[open.length - 1];
    if (at.entered < 0) {
      at.entered = lane;
      for (const child of children[at.i]) open.push({ i: child, depth: at.depth + 1, entered: -1 });
      if (children[at.i].length > 0) continue;
    }
    open.pop();
    if (children[at.i].length === 0) ++lane;
    const [id, , format, grade, used] = units[at.i];
    tiles.push({ id, format, grade, used: used === 1, depth: at.depth, lane: at.entered, lanes: lane - at.entered });
  }
  return { tiles, lanes: lane, depth: Math.max(0, ...tiles.map((tile) => tile.depth + 1)) };
}

export class PrefixTreeView {
  #rects = new Map();   // by id
  #before = new Map();  // tiles of the last drawing, by id

  constructor() {
    this.plot = svg("svg", { class: "tree", role: "img", "aria-label": "No blocks yet" });
    this.words = el("p", { class: "help" });
    this.scroller = el("div", { class: "tree-box", tabindex: "0", role: "region", "aria-label": "Prefix tree" }, this.plot);
    this.element = el("div", {}, this.scroller, this.words);
  }

  // cache: the reply of GET /v1/cache. colourOf: class of a format's index.
  show(cache, colourOf) {
    const { units } = cache.tree;
    const { tiles, lanes, depth } = layout(units);
    const width = Math.max(120, this.scroller.clientWidth - 12);  // without its padding
    const step = Math.max(5, Math.min(22, Math.floor(width / Math.max(1, depth))));
    this.plot.setAttribute("width", Math.max(width, depth * step));
    this.plot.setAttribute("height", Math.max(kLane, lanes * kLane));
    const now = new Map();
    for (const tile of tiles) {
      now.set(tile.id, tile);
      this.#place(tile, step, colourOf);
    }
    for (const [id, rect] of this.#rects) {
      if (!now.has(id)) this.#leave(id, rect);
    }
    this.#before = now;
    this.#describe(cache, tiles, lanes);
  }

  #place(tile, step, colourOf) {
    let rect = this.#rects.get(tile.id);
    const before = this.#before.get(tile.id);
    let kind = `tile ${colourOf(tile.format)}`;
    if (tile.used) kind += " used";
    if (tile.grade !== tile.format) kind += " coarse";
    if (!rect) {
      rect = svg("rect", { rx: 1.5 });
      this.#rects.set(tile.id, rect);
      this.plot.append(rect);
      kind += " entered";
    } else if (before && before.format !== tile.format) {
      kind += " demoted";
    }
    if (rect.getAttribute("class") !== kind) rect.setAttribute("class", kind);
    const place = { x: tile.depth * step, y: tile.lane * kLane, width: step - kGap, height: tile.lanes * kLane - kGap };
    for (const [name, value] of Object.entries(place)) {
      if (rect.getAttribute(name) !== String(value)) rect.setAttribute(name, value);
    }
  }

  #leave(id, rect) {
    this.#rects.delete(id);
    rect.setAttribute("class", "tile evicted");
    setTimeout(() => rect.remove(), kLeaving);
  }

  #describe(cache, tiles, lanes) {
    const used = tiles.filter((tile) => tile.used).length;
    const parts = [`${countText(cache.units)} blocks of ${cache.unit_tokens} tokens`,
                   `${lanes} ${lanes === 1 ? "path" : "paths"}`, `${used} in use`];
    if (cache.tree.omitted_units > 0) parts.push(`${countText(cache.tree.omitted_units)} not shown`);
    if (cache.tree.units_of_other_salts > 0) {
      parts.push(`${countText(cache.tree.units_of_other_salts)} under other salts`);
    }
    const text = tiles.length === 0 && cache.unit_tokens === 0 ? "This server has no prefix cache."
               : tiles.length === 0 ? "Nothing is cached yet: a prefix is kept once it has a whole block."
               : parts.join(" · ");
    this.words.textContent = text;
    this.plot.setAttribute("aria-label", text);
  }
}
