// Small plots: a line over the last minute, and stacked bars.

import { el, svg } from "./dom.js";

const kWidth = 140;
const kHeight = 36;
const kPoints = 60;

// A line of the newest values. null is a gap: nothing was measured.
export class Sparkline {
  #values = [];

  constructor(label, format) {
    this.label = label;
    this.format = format;
    this.line = svg("path", { class: "spark-line" });
    this.area = svg("path", { class: "spark-area" });
    this.dots = svg("path", { class: "spark-dots" });  // values alone between gaps
    this.plot = svg("svg", { viewBox: `0 0 ${kWidth} ${kHeight}`, preserveAspectRatio: "none", role: "img",
                                "aria-label": `${label}: no values yet` },
                    this.area, this.line, this.dots);
    this.value = el("span", { class: "spark-value" }, "–");
    this.element = el("div", { class: "spark" }, el("div", { class: "spark-head" },
                      el("span", { class: "spark-label" }, label), this.value), this.plot);
  }

  add(value) {
    this.#values.push(value);
    if (this.#values.length > kPoints) this.#values.shift();
    this.#draw();
  }

  #draw() {
    const known = this.#values.filter((value) => value !== null);
    const last = known.at(-1) ?? null;
    const top = Math.max(...known, Number.MIN_VALUE);
    const x = (i) => ((i + kPoints - this.#values.length) / (kPoints - 1)) * kWidth;
    const y = (value) => kHeight - 2 - (value / top) * (kHeight - 5);
    let line = "";
    let pen = false;
    this.#values.forEach((value, i) => {
      if (value !== null) line += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = value !== null;
    });
    this.line.setAttribute("d", line);
    const first = this.#values.indexOf(known[0]);
    const whole = known.length === this.#values.length && known.length > 1;
    this.area.setAttribute("d", whole ? `${line}L${kWidth} ${kHeight}L${x(first).toFixed(1)} ${kHeight}Z` : "");
    const alone = (i) => this.#values[i] !== null && (this.#values[i - 1] ?? null) === null &&
      (this.#values[i + 1] ?? null) === null;
    this.dots.setAttribute("d", this.#values.map((value, i) => (alone(i) ? `M${x(i).toFixed(1)} ${y(value).toFixed(1)}h0` : "")).join(""));
    this.value.textContent = last === null ? "–" : this.format(last);
    this.plot.setAttribute("aria-label", last === null ? `${this.label}: nothing measured yet`
      : `${this.label}: now ${this.format(last)}, at most ${this.format(top)} in the last minute`);
  }
}

// A bar of parts: [{ label, value, colour }], with a legend. text(value) prints a value.
export function stackedBar(parts, text, label) {
  const sum = parts.reduce((all, { value }) => all + value, 0) || 1;
  const shown = parts.filter(({ value }) => value > 0);
  const bar = el("div", { class: "bar", role: "img", "aria-label":
    `${label}: ${shown.map((part) => `${part.label} ${text(part.value)}`).join(", ")}` });
  for (const { value, colour } of shown) {
    const piece = el("span", { class: `fill ${colour}` });
    piece.style.flexGrow = String(value / sum);
    bar.append(piece);
  }
  const legend = el("ul", { class: "legend" }, ...shown.map((part) => el("li", {},
    el("span", { class: `swatch ${part.colour}` }), el("span", {}, part.label),
    el("span", { class: "amount" }, text(part.value)))));
  return [bar, legend];
}
