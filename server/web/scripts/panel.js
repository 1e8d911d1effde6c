// The panel that shows the cache at work: reads /metrics and GET /v1/cache once a second while it is
// open and the page is visible.

import { $, el } from "./dom.js";
import { api } from "./api.js";
import { bytesText, countText, percentText, secondsText } from "./figures.js";
import { parseMetrics, reading } from "./metrics.js";
import { Sparkline, stackedBar } from "./plots.js";
import { PrefixTreeView } from "./prefix_tree.js";

const kEvery = 1000;  // milliseconds

const section = (title, ...content) => el("section", {}, el("h3", {}, title), ...content);
const tile = (label) => {
  const value = el("b", {}, "–");
  return { value, element: el("div", { class: "stat" }, value, el("span", {}, label)) };
};

export class Panel {
  #timer = 0;
  #before = null;  // { time, metrics } of the last reading
  #events = null;  // counters of the last reading

  constructor(app) {
    this.app = app;
    this.running = tile("running");
    this.waiting = tile("waiting");
    this.usage = tile("pages in use");
    this.hits = tile("prompts cached");
    this.rate = new Sparkline("Tokens a second", (value) => value.toFixed(value < 10 ? 1 : 0));
    this.first = new Sparkline("Time to first token", secondsText);
    this.gap = new Sparkline("Between tokens", secondsText);
    this.chat = el("div", { class: "turns" });
    this.formats = el("div", {});
    this.tiers = el("div", {});
    this.tree = new PrefixTreeView();
    this.legend = el("ul", { class: "legend keys" });
    this.ladder = el("p", { class: "events", "aria-live": "off" });
    $("panel-body").append(
      el("div", { class: "stats" }, ...[this.running, this.waiting, this.usage, this.hits].map((t) => t.element)),
      section("This chat", this.chat),
      section("Prefix tree", this.tree.element, this.legend, this.ladder),
      section("Memory", this.formats, this.tiers),
      section("The last minute, of all requests", el("div", { class: "sparks" },
        this.rate.element, this.first.element, this.gap.element)));
    document.addEventListener("visibilitychange", () => this.#schedule());
    for (const name of ["opened", "messages", "ended"]) app.addEventListener(name, () => this.showChat());
  }

  set open(open) {
    $("panel").classList.toggle("open", open);
    $("toggle-panel").setAttribute("aria-expanded", String(open));
    this.isOpen = open;
    this.showChat();
    this.#schedule();
  }

  #schedule() {
    clearTimeout(this.#timer);
    if (this.isOpen && !document.hidden) this.#timer = setTimeout(() => this.#read(), 0);
    else this.#before = null;  // no rate over a time that was not watched
  }

  async #read() {
    const started = performance.now();
    try {
      const [text, cache] = await Promise.all([api.metrics(), api.cache()]);
      this.#show(parseMetrics(text), cache);
      $("panel-state").textContent = "";
    } catch (error) {
      $("panel-state").textContent = `no figures: ${error.message}`;
      this.#before = null;
    }
    clearTimeout(this.#timer);
    if (this.isOpen && !document.hidden) {
      this.#timer = setTimeout(() => this.#read(), Math.max(100, kEvery - (performance.now() - started)));
    }
  }

  #show(metrics, cache) {
    const time = performance.now();
    const now = reading(this.#before?.metrics ?? null, metrics, (time - (this.#before?.time ?? 0)) / 1000);
    this.#before = { time, metrics };
    this.running.value.textContent = countText(now.running);
    this.waiting.value.textContent = countText(now.waiting);
    this.usage.value.textContent = percentText(now.usage);
    this.hits.value.textContent = cache.query_tokens > 0 ? percentText(cache.hit_tokens / cache.query_tokens) : "–";
    this.rate.add(now.generated);
    this.first.add(now.first);
    this.gap.add(now.gap);
    const colours = new Map(cache.formats.map(({ format }, i) => [format, `format-${i % 8}`]));
    const colourOf = (index) => `format-${index % 8}`;
    this.tree.show(cache, colourOf);
    this.#showFormats(cache, colours);
    this.#showTiers(cache);
    this.#showLegend(cache, colours);
    this.#showEvents(cache);
  }

  #showFormats(cache, colours) {
    const parts = cache.formats.flatMap(({ format, private_bytes, shared_bytes }) => [
      { label: `${format}, of one request`, value: private_bytes, colour: `${colours.get(format)} own` },
      { label: `${format}, shared or cached`, value: shared_bytes, colour: colours.get(format) }]);
    const cached = cache.unused_bytes;
    const used = parts.reduce((sum, { value }) => sum + value, 0);
    // free_bytes counts cached pages that no request uses, because they can be evicted.
    parts.push({ label: "free", value: Math.max(0, cache.free_bytes - cached), colour: "free" });
    this.formats.replaceChildren(
      el("p", { class: "lead" }, el("b", {}, bytesText(used)), ` of ${bytesText(used + Math.max(0, cache.free_bytes - cached))} of pages`),
      ...stackedBar(parts, bytesText, "Pages"),
      el("p", { class: "help" }, `Besides: ${bytesText(cache.window_bytes)} for the newest tokens, ${bytesText(cache.table_bytes)} for tables.`));
  }

  // Where evicted blocks are kept, one bar for each tier.
  #showTiers(cache) {
    const names = { host: "Host memory", disk: "Disk" };
    this.tiers.replaceChildren(...cache.tiers.flatMap((one) => {
      const name = names[one.tier] ?? one.tier;
      const parts = [
        { label: `${countText(one.units)} evicted blocks`, value: one.bytes, colour: "format-7" },
        { label: "free", value: Math.max(0, one.limit_bytes - one.bytes), colour: "free" }];
      return [
        el("p", { class: "lead" }, el("b", {}, bytesText(one.bytes)), ` of ${bytesText(one.limit_bytes)}: ${name}`),
        ...stackedBar(parts, bytesText, name),
        el("p", { class: "help" }, `${countText(one.read_units)} blocks came back from it.`)];
    }));
  }

  #showLegend(cache, colours) {
    const inTree = new Set(cache.tree.units.map((unit) => unit[2]));
    const entries = cache.formats.filter((_, i) => inTree.has(i)).map(({ format }) =>
      el("li", {}, el("span", { class: `swatch ${colours.get(format)}` }), format));
    if (cache.tree.units.length > 0) entries.push(el("li", {}, el("span", { class: "swatch in-use" }), "in use"));
    if (cache.tree.units.some((unit) => unit[3] !== unit[2])) {
      entries.push(el("li", {}, el("span", { class: "swatch coarse" }), "read a coarser prefix"));
    }
    this.legend.replaceChildren(...entries);
  }

  // Shows the steps of the ladder since the page was opened, with the last change in bold.
  #showEvents(cache) {
    const names = [["entered_units", "inserted"], ["demoted_units", "demoted"], ["compressed_units", "compressed"],
                   ["evicted_units", "evicted"], ["handed_over_units", "handed over"]];
    const before = this.#events;
    this.#events = cache;
    const parts = names.map(([field, word]) => {
      const change = before ? cache[field] - before[field] : 0;
      return el("span", { class: change > 0 ? "moved" : "" }, `${countText(cache[field])} ${word}`);
    });
    const ladder = cache.ladder.length > 0 ? `Ladder: ${cache.ladder.join(" → ")}, then evicted.` : "No ladder: unused blocks are evicted.";
    this.ladder.replaceChildren(...parts.flatMap((part) => [part, " · "]).slice(0, -1), el("br"), ladder);
  }

  // The turns of the open chat: how much of each prompt was found, and its memory beside that of f16.
  showChat() {
    if (!this.isOpen) return;
    const turns = this.app.conversation.path().filter(({ figures }) => figures?.prompt);
    if (turns.length === 0) {
      this.chat.replaceChildren(el("p", { class: "help" }, "Each answer adds a bar: how much of its prompt was found in the cache."));
      return;
    }
    const kv = turns.at(-1).figures.kv;
    const content = [];
    if (kv && kv.bytes > 0) content.push(...this.#against16(kv));
    const longest = Math.max(...turns.map(({ figures }) => figures.prompt));
    content.push(el("ol", { class: "turn-list" }, ...turns.slice(-12).map(({ figures }) => turnBar(figures, longest))));
    this.chat.replaceChildren(...content);
  }

  #against16(kv) {
    const share = kv.bytes / kv.f16;
    const bar = el("span", { class: "fill" });
    bar.style.width = `${Math.min(100, 100 * share)}%`;
    const words = `${bytesText(kv.bytes)} in ${kv.policy}, ${bytesText(kv.f16)} in f16`;
    const tokens = kv.low + kv.dropped > 0
      ? ` ${Math.round(kv.high)} tokens in the high tier, ${Math.round(kv.low)} in the low one, ${Math.round(kv.dropped)} dropped.` : "";
    return [el("p", { class: "lead" }, el("b", {}, bytesText(kv.bytes)), `instead of ${bytesText(kv.f16)} in f16`,
               share <= 1 ? el("span", { class: "ratio" }, `${(1 / share).toFixed(1)}× smaller`) : ""),
            el("div", { class: "against", role: "img", "aria-label": words, title: words }, bar),
            el("p", { class: "help" }, `Policy ${kv.policy}, buffers and tables included.${tokens}`)];
  }
}

function turnBar({ prompt, cached }, longest) {
  const bar = el("span", { class: "turn-bar" });
  bar.style.width = `${(100 * prompt) / longest}%`;
  const hit = el("span", { class: "hit" });
  hit.style.width = `${(100 * (cached ?? 0)) / prompt}%`;
  bar.append(hit);
  const words = `${countText(cached ?? 0)} of ${countText(prompt)} tokens cached`;
  return el("li", { title: words }, el("span", { class: "turn-track", "aria-hidden": "true" }, bar),
            el("span", { class: "amount" }, `${countText(cached ?? 0)} / ${countText(prompt)}`), el("span", { class: "unseen" }, " tokens cached"));
}
