// The list of chats and the panel. On a wide page they stand beside the chat; on a narrow one they
// lie over it, one at a time, and the rest is out of reach until they are closed.

import { $ } from "./dom.js";

const kNarrow = { sidebar: matchMedia("(max-width: 760px)"), panel: matchMedia("(max-width: 1100px)") };
const kButtons = { sidebar: "toggle-sidebar", panel: "toggle-panel" };

export class Drawers {
  constructor({ changed }) {
    this.changed = changed;
    for (const [name, button] of Object.entries(kButtons)) {
      $(button).addEventListener("click", () => this.toggle(name));
      kNarrow[name].addEventListener("change", () => this.set(name, !kNarrow[name].matches && this.#wanted(name)));
      this.set(name, !kNarrow[name].matches && this.#wanted(name));
    }
    $("scrim").addEventListener("click", () => this.closeOver());
    for (const button of document.querySelectorAll("[data-close]")) {
      button.addEventListener("click", () => this.toggle(button.dataset.close, false));
    }
  }

  #wanted(name) { return localStorage.getItem(`tessera-${name}`) !== "closed"; }
  isOpen(name) { return $(name).classList.contains("open"); }
  isOver(name) { return kNarrow[name].matches && this.isOpen(name); }

  toggle(name, open = !this.isOpen(name)) {
    if (!kNarrow[name].matches) localStorage.setItem(`tessera-${name}`, open ? "open" : "closed");
    if (open && kNarrow[name].matches) this.closeOver(false);
    this.set(name, open);
    if (kNarrow[name].matches) (open ? $(name).querySelector("button") : $(kButtons[name])).focus();
  }

  // Returns: true if one lay over the page and was closed.
  closeOver(focus = true) {
    let closed = false;
    for (const name of Object.keys(kButtons)) {
      if (!this.isOver(name)) continue;
      this.set(name, false);
      if (focus) $(kButtons[name]).focus();
      closed = true;
    }
    return closed;
  }

  set(name, open) {
    $(name).classList.toggle("open", open);
    $(name).inert = !open;
    $(kButtons[name]).setAttribute("aria-expanded", String(open));
    const over = Object.keys(kButtons).some((each) => this.isOver(each));
    $("scrim").hidden = !over;
    $("main").inert = over;
    this.changed(name, open);
  }
}
