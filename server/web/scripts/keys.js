// Keyboard shortcuts, and the dialog that lists them.

import { $, el } from "./dom.js";

// key, modifiers: c for Ctrl (or Command), s for Shift.
const kKeys = [
  { key: "o", with: "cs", text: "New chat", act: ({ app }) => { app.create(); $("input").focus(); } },
  { key: "k", with: "c", text: "Search the chats", act: ({ drawers }) => {
    if (!drawers.isOpen("sidebar")) drawers.toggle("sidebar", true);
    $("search").focus();
    $("search").select();
  } },
  { key: ",", with: "c", text: "Settings of this chat", act: ({ settings }) => settings.open() },
  { key: ".", with: "c", text: "Cache panel", act: ({ drawers }) => drawers.toggle("panel") },
  { key: "b", with: "c", text: "List of chats", act: ({ drawers }) => drawers.toggle("sidebar") },
  { key: "e", with: "cs", text: "Edit your last message", act: () => press("user", "Edit") },
  { key: "r", with: "cs", text: "Answer again", act: () => press("assistant", "Answer again") },
  { key: "c", with: "cs", text: "Copy the last answer", act: () => press("assistant", "Copy") },
  { key: "F2", with: "", text: "Rename the chat", act: ({ app, sidebar }) => {
    if (!app.conversation.empty) sidebar.rename(app.conversation.id);
  } },
  { key: "/", with: "c", text: "This list", act: () => $("keys").showModal() },
];

function press(role, label) {
  const messages = document.querySelectorAll(`.message.${role}`);
  messages[messages.length - 1]?.querySelector(`[aria-label="${label}"]`)?.click();
}

const isPressed = (event, entry) => event.key.toLowerCase() === entry.key.toLowerCase() && !event.altKey &&
  (event.ctrlKey || event.metaKey) === entry.with.includes("c") && event.shiftKey === entry.with.includes("s");

function listed() {
  const fixed = [[["Enter"], "Send"], [["Shift", "Enter"], "Begin a line"],
                 [["Esc"], "Stop the answer, or close the dialog"]];
  const names = { c: /Mac/.test(navigator.platform) ? "⌘" : "Ctrl", s: "Shift" };
  const all = [...fixed, ...kKeys.map((entry) => [[...[...entry.with].map((m) => names[m]), entry.key.toUpperCase()], entry.text])];
  return all.flatMap(([keys, text]) => [el("dt", {}, ...keys.flatMap((key) => [el("kbd", {}, key), " "])), el("dd", {}, text)]);
}

export function bindKeys(page) {
  $("keys-list").append(...listed());
  $("keys-button").addEventListener("click", () => $("keys").showModal());
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open], :popover-open")) return;
    if (event.key === "Escape") {
      if (page.drawers.closeOver()) return;
      page.app.stop();
      return;
    }
    const entry = kKeys.find((each) => isPressed(event, each));
    if (!entry) return;
    event.preventDefault();
    entry.act(page);
  });
}
