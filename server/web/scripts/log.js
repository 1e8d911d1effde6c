// The scrolling list of messages. It draws at most once a frame, and less often while drawing is
// slow; it follows the newest text only while the reader is at the end.

import { $, el } from "./dom.js";
import { MessageView, copyText } from "./messages.js";

const kNear = 48;  // pixels from the end that count as the end

export class Log {
  #views = new Map();    // by message id, of the open conversation
  #conversation = null;
  #waiting = new Set();  // messages to be drawn
  #frame = 0;
  #pause = 0;            // milliseconds before the next drawing
  #drawn = 0;            // when the last drawing ended
  #follows = true;

  constructor(app) {
    this.app = app;
    this.scroller = $("messages");
    this.list = $("log");
    this.scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    $("latest").addEventListener("click", () => this.follow());
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest(".code-copy");
      if (button) copyText(button.closest(".code").querySelector("code").textContent, button);
    });
    new ResizeObserver(() => this.#keepEnd()).observe(this.scroller);
  }

  // Draws all messages. Views of messages that are shown already stay.
  show() {
    const { conversation } = this.app;
    if (this.#conversation !== conversation) {
      this.#conversation = conversation;
      this.#views.clear();
      this.#follows = true;
    }
    const path = conversation.path();
    const views = path.map((message) => this.#view(message));
    if (views.length === 0) this.list.replaceChildren(welcome());
    else this.#arrange(views.map((view) => view.element));
    for (const view of views) view.update(this.#context(view.message, path));
    this.#keepEnd();
  }

  // The message has changed: draws it soon.
  change(message) {
    if (!this.#views.has(message.id)) return;
    this.#waiting.add(message);
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  follow() {
    this.#follows = true;
    this.#keepEnd();
  }

  #view(message) {
    const known = this.#views.get(message.id);
    if (known?.message === message) return known;
    const view = new MessageView(message, this.app);
    this.#views.set(message.id, view);
    return view;
  }

  #context(message, path) {
    return { conversation: this.app.conversation, running: this.app.running !== null,
             last: message === path.at(-1) };
  }

  // Elements that stay in their places keep focus and selection.
  #arrange(elements) {
    elements.forEach((element, i) => {
      if (this.list.children[i] !== element) this.list.insertBefore(element, this.list.children[i] ?? null);
    });
    while (this.list.children.length > elements.length) this.list.lastChild.remove();
  }

  #draw() {
    this.#frame = 0;
    const now = performance.now();
    if (now - this.#drawn < this.#pause) {
      this.#frame = requestAnimationFrame(() => this.#draw());
      return;
    }
    const path = this.app.conversation.path();
    for (const message of this.#waiting) {
      this.#views.get(message.id)?.update(this.#context(message, path));
    }
    this.#waiting.clear();
    this.#keepEnd();
    this.#drawn = performance.now();
    // Drawing takes at most a third of the time, so that typing and scrolling stay smooth.
    this.#pause = 2 * (this.#drawn - now);
  }

  #noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.#follows = scrollHeight - scrollTop - clientHeight < kNear;
    $("latest").hidden = this.#follows;
  }

  #keepEnd() {
    if (this.#follows) this.scroller.scrollTop = this.scroller.scrollHeight;
    $("latest").hidden = this.#follows;
  }
}

function welcome() {
  return el("div", { class: "welcome" }, el("h2", {}, "What is on your mind?"),
    el("p", {}, "The chat stays in this browser. The panel on the right shows how much of it the " +
                "server's cache keeps, in how many bytes."));
}
