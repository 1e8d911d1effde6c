// Short notes at the bottom of the page.

import { $, el } from "./dom.js";

const kSeconds = 8;

// action: { name, act } of a button, or none. alert: read out at once.
export function toast(text, { name = null, act = null, alert = false } = {}) {
  const note = el("div", { class: alert ? "toast alert" : "toast", role: alert ? "alert" : false },
                  el("span", {}, text));
  const close = () => note.remove();
  if (name) note.append(el("button", { type: "button", class: "text-button", onclick: () => { close(); act(); } }, name));
  $("toasts").replaceChildren(note);
  setTimeout(close, kSeconds * 1000);
}

// Tells a screen reader.
export function announce(text) {
  $("announcer").textContent = "";
  setTimeout(() => { $("announcer").textContent = text; }, 50);
}
