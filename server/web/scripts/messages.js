// The messages of the open conversation.

import { $, el, icon, iconButton } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { figuresText } from "./figures.js";

const kNames = { user: "You", assistant: "Assistant", tool: "Tool" };

// Splits off a model's text between <think> and </think> at the start of its text, for servers
// that do not.
export function splitReasoning(message) {
  const match = /^\s*<think>([\s\S]*?)(?:<\/think>\s*|$)/.exec(message.content);
  if (!match) return { reasoning: message.reasoning ?? "", content: message.content };
  return { reasoning: (message.reasoning ?? "") + match[1].trim(),
           content: message.content.slice(match[0].length) };
}

// Returns: JSON with indents, or the text as it is.
function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export async function copyText(text, button) {
  await navigator.clipboard.writeText(text).catch(() => copyBySelection(text));
  const label = button.querySelector("use") ? null : button.textContent;
  button.classList.add("copied");
  if (label !== null) button.textContent = "Copied";
  setTimeout(() => {
    button.classList.remove("copied");
    if (label !== null) button.textContent = "Copy";
  }, 1500);
}

// Browsers give the clipboard to secure pages only; http://192.168.0.2 is none.
function copyBySelection(text) {
  const area = el("textarea", { class: "unseen", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// One message. update() shows the changes since the last call.
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.element = el("article", { class: `message ${message.role}`, "data-id": message.id,
                                   "aria-label": kNames[message.role] },
                      el("div", { class: "speaker" }, kNames[message.role]), this.body, this.foot);
    if (message.role === "assistant") this.#prepareAnswer();
    else this.body.append(el("div", { class: "plain" }, message.content));
  }

  #prepareAnswer() {
    this.thoughts = el("div", { class: "markdown" });
    this.summary = el("summary", {}, "Reasoning");
    this.details = el("details", { class: "reasoning", hidden: true }, this.summary, this.thoughts);
    this.text = el("div", { class: "markdown" });
    this.calls = el("div", { class: "calls" });
    this.note = el("div", { class: "note" });
    this.body.append(this.details, this.text, this.calls, this.note);
    this.textView = new MarkdownView(this.text);
    this.thoughtsView = new MarkdownView(this.thoughts);
  }

  // context: { conversation, running, last }.
  update(context) {
    const streaming = this.message.state === "streaming";
    if (this.message.role === "assistant") this.#updateAnswer(streaming, context);
    this.element.classList.toggle("streaming", streaming);
    this.element.setAttribute("aria-busy", String(streaming));
    if (!streaming) this.#updateFoot(context);
    else this.foot.replaceChildren();
  }

  #updateAnswer(streaming, context) {
    const { message } = this;
    const { reasoning, content } = splitReasoning(message);
    const json = context.conversation.record.settings.schema && !streaming && content.trimStart().startsWith("{");
    const shown = json ? "```json\n" + prettyJson(content) + "\n```" : content;
    this.details.hidden = reasoning === "";
    this.summary.textContent = streaming && content === "" ? "Reasoning…" : "Reasoning";
    if (streaming) {
      this.textView.update(shown);
      this.thoughtsView.update(reasoning);
    } else {
      this.textView.finish(shown);
      this.thoughtsView.finish(reasoning);
    }
    this.#updateCalls(streaming, context);
    this.#updateNote(streaming);
  }

  #updateCalls(streaming, context) {
    const calls = this.message.toolCalls ?? [];
    const cards = calls.map((call) => el("div", { class: "call" },
      el("div", { class: "call-head" }, icon("settings"), el("b", {}, call.name || "…")),
      el("pre", { tabindex: "0", "aria-label": `Arguments of ${call.name}` },
         streaming ? call.arguments : prettyJson(call.arguments))));
    if (calls.length > 0 && !streaming && context.last) cards.push(this.#resultForm(calls));
    this.calls.replaceChildren(...cards);
  }

  #resultForm(calls) {
    const areas = calls.map((call) => el("textarea", { rows: "2", "aria-label": `Result of ${call.name}`,
                                                       placeholder: `Result of ${call.name}` }));
    const form = el("form", { class: "results", onsubmit: (event) => {
      event.preventDefault();
      this.actions.answerCalls(this.message, calls.map((call, i) => [call, areas[i].value]));
    } }, ...areas, el("button", { type: "submit", class: "primary" }, calls.length > 1 ? "Send results" : "Send result"));
    return form;
  }

  #updateNote(streaming) {
    const { message } = this;
    this.note.className = "note";
    this.note.removeAttribute("role");
    if (message.state === "failed") {
      this.note.classList.add("error");
      this.note.setAttribute("role", "alert");
      this.note.textContent = message.error;
    } else if (message.state === "stopped") {
      this.note.textContent = "Stopped.";
    } else {
      const waits = streaming && message.content === "" && !message.reasoning && !message.toolCalls;
      this.note.replaceChildren(...(waits ? [el("span", { class: "waiting", "aria-label": "Waiting for the first token" })] : []));
    }
  }

  #updateFoot(context) {
    const { message, actions } = this;
    const buttons = [];
    const branches = context.conversation.branches(message);
    if (branches.length > 1) buttons.push(this.#branchButtons(branches, context.running));
    if (message.role !== "tool") {
      buttons.push(iconButton("copy", "Copy", (event) => copyText(splitReasoning(message).content, event.currentTarget)));
      const off = { disabled: context.running };
      buttons.push(iconButton("edit", "Edit", () => this.#edit(), off));
      if (message.role === "assistant") {
        buttons.push(iconButton("again", "Answer again", () => actions.again(message), off));
        if (context.last && message.content !== "") {
          buttons.push(iconButton("continue", "Continue", () => actions.continue(message), off));
        }
      }
    }
    const figures = message.figures ? el("span", { class: "figures" }, figuresText(message.figures, message.finish)) : null;
    this.foot.replaceChildren(el("span", { class: "actions" }, ...buttons), ...(figures ? [figures] : []));
  }

  #branchButtons(branches, running) {
    const at = branches.indexOf(this.message);
    const go = (step) => ({ disabled: running || !branches[at + step] });
    return el("span", { class: "branches", role: "group", "aria-label": "Versions" },
      iconButton("back", "Previous version", () => this.actions.show(branches[at - 1]), go(-1)),
      el("span", { class: "branch-number" }, `${at + 1} / ${branches.length}`),
      iconButton("forward", "Next version", () => this.actions.show(branches[at + 1]), go(1)));
  }

  #edit() {
    const area = el("textarea", { class: "editor", "aria-label": "Edit the message", rows: "1" });
    area.value = this.message.content;
    const close = () => {
      form.replaceWith(this.body);
      this.foot.hidden = false;
      this.foot.querySelector("[aria-label=Edit]")?.focus();
    };
    const form = el("form", { class: "editing", onsubmit: (event) => {
      event.preventDefault();
      close();
      const text = area.value.trim();
      if (text !== "" && text !== this.message.content) this.actions.edit(this.message, text);
    }, onkeydown: (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    } }, area, el("div", { class: "row" },
      el("button", { type: "button", class: "text-button", onclick: close }, "Cancel"),
      el("button", { type: "submit", class: "primary" }, this.message.role === "user" ? "Send" : "Save")));
    this.body.replaceWith(form);
    this.foot.hidden = true;
    growWithText(area);
    area.focus();
  }
}

// Lets a text area be as high as its text, wrapped lines included; its style limits the height.
export function growWithText(area) {
  const fit = () => {
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
  };
  area.addEventListener("input", fit);
  new ResizeObserver((entries) => { if (entries[0].contentRect.width !== area.lastWidth) {
    area.lastWidth = entries[0].contentRect.width;
    fit();
  } }).observe(area);
  fit();
  return fit;
}
