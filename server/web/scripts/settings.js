// The form of a chat's settings, made from the table in options.js.

import { $, el } from "./dom.js";
import { kCache, kOptions, kOutput, kSampling, problemOf } from "./options.js";
import { sentenceOf } from "./presets.js";

const idOf = (option) => `setting-${option.name}`;

function control(option) {
  const shared = { id: idOf(option), "aria-describedby": `${idOf(option)}-help` };
  if (option.kind === "number") {
    return el("input", { ...shared, type: "number", min: option.min, max: option.max, step: option.step,
                         placeholder: option.normal, inputmode: "decimal" });
  }
  if (option.kind === "switch") return el("input", { ...shared, type: "checkbox", role: "switch" });
  if (option.kind === "preset") return el("select", shared);
  if (option.kind === "text") {
    return el("input", { ...shared, type: "text", placeholder: option.normal, autocomplete: "off" });
  }
  return el("textarea", { ...shared, rows: option.kind === "json" ? 3 : 2, spellcheck: "false",
                          class: "mono" });
}

function row(option) {
  const wide = option.kind === "json" || option.kind === "preset" ? "option wide" : "option";
  return el("div", { class: `${wide} ${option.kind}` }, el("label", { for: idOf(option) }, option.label),
            control(option), el("p", { id: `${idOf(option)}-help`, class: "help" }, option.help ?? ""));
}

const section = (title, rows) => el("fieldset", {}, el("legend", {}, title), ...rows);

export class Settings {
  #presets = [];

  constructor(app) {
    this.app = app;
    $("settings-fields").append(
      section("System prompt", [el("textarea", { id: "system", rows: 3, "aria-label": "System prompt",
        placeholder: "Tells the model how to answer, in every turn of this chat." })]),
      section("Sampling", kSampling.map(row)), section("KV cache", kCache.map(row)),
      section("Form of the answer", kOutput.map(row)));
    $("setting-kv_preset").addEventListener("change", () => this.#describe());
    $("settings-reset").addEventListener("click", () => this.#fill({}, $("system").value));
    $("settings-form").addEventListener("submit", (event) => this.#submit(event));
    $("open-settings").addEventListener("click", () => this.open());
  }

  // names: of GET /v1/cache, the server's default first.
  setPresets(names) { this.#presets = names; }

  open() {
    const { settings, system } = this.app.conversation.record;
    this.#fill(settings, system);
    $("settings").returnValue = "";
    $("settings").showModal();
    $("settings-fields").scrollTop = 0;
    $("system").focus();
  }

  #fill(settings, system) {
    $("system").value = system;
    $("settings-problem").textContent = "";
    const chosen = settings.kv_preset;
    const names = chosen && !this.#presets.includes(chosen) ? [...this.#presets, chosen] : this.#presets;
    $("setting-kv_preset").replaceChildren(
      el("option", { value: "" }, this.#presets[0] ? `${this.#presets[0]} (the server's)` : "the server's"),
      ...names.slice(1).map((name) => el("option", { value: name }, name)));
    for (const option of kOptions) {
      const input = $(idOf(option));
      input.removeAttribute("aria-invalid");
      if (option.kind === "switch") input.checked = settings[option.name] === true;
      else input.value = settings[option.name] ?? "";
    }
    this.#describe();
  }

  #describe() {
    const preset = $("setting-kv_preset").value || this.#presets[0] || "";
    $("setting-kv_preset-help").textContent = preset ? sentenceOf(preset) : "";
  }

  #submit(event) {
    const settings = {};
    for (const option of kOptions) {
      const value = this.#valueOf(option, $(idOf(option)));
      if (value === undefined) continue;
      const problem = problemOf(option, value);
      if (problem !== "") {
        event.preventDefault();
        this.#complain(option, problem);
        return;
      }
      settings[option.name] = value;
    }
    const { record } = this.app.conversation;
    if (record.settings.model) settings.model = record.settings.model;
    record.settings = settings;
    record.system = $("system").value;
    if (!this.app.conversation.empty) this.app.save(this.app.conversation);
  }

  #valueOf(option, input) {
    if (option.kind === "switch") return input.checked ? true : undefined;
    if (option.kind === "number") {
      if (input.validity.badInput) return NaN;
      return input.value === "" ? undefined : Number(input.value);
    }
    const text = input.value.trim();
    return text === "" ? undefined : text;
  }

  #complain(option, problem) {
    const input = $(idOf(option));
    input.setAttribute("aria-invalid", "true");
    input.focus();
    $("settings-problem").textContent = `${option.label}: ${problem}.`;
  }
}
