// The list of chats: open, search, rename, export, delete, import.

import { $, el, iconButton } from "./dom.js";
import { Conversation } from "./conversation.js";
import { download, fileName, fromJson, toCsv, toJson, toMarkdown } from "./transfer.js";
import { toast } from "./toast.js";

const kSearchDelay = 150;  // milliseconds after the last key

function dayOf(time) {
  const days = Math.floor((new Date().setHours(24, 0, 0, 0) - time) / 86400000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days < 7 ? "This week" : new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}

export class Sidebar {
  #search = 0;
  #shown = 0;  // number of the newest show()

  constructor(app, { opened }) {
    this.app = app;
    this.opened = opened;
    $("new").addEventListener("click", () => { app.create(); opened(); });
    $("search").addEventListener("input", () => {
      clearTimeout(this.#search);
      this.#search = setTimeout(() => this.show(), kSearchDelay);
    });
    $("export-all").addEventListener("click", () => this.#exportAll());
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.#import());
    $("chats").addEventListener("keydown", (event) => this.#moveFocus(event));
    app.addEventListener("chats", () => this.show());
    app.addEventListener("opened", () => this.#markOpen());
  }

  async show() {
    const number = ++this.#shown;
    const words = $("search").value.trim();
    const found = words === "" ? null : await this.app.store.search(words);
    const all = await this.app.store.headings();
    if (number !== this.#shown) return;  // a later call is on its way
    const headings = all.filter(({ id }) => found === null || found.has(id))
                        .sort((a, b) => b.updated - a.updated);
    const focused = document.activeElement?.closest("#chats li")?.dataset.id;
    let day = "";
    const items = headings.flatMap((heading) => {
      const of = dayOf(heading.updated);
      const title = of === day ? [] : [el("li", { class: "day", role: "presentation" }, of)];
      day = of;
      return [...title, this.#item(heading)];
    });
    if (items.length === 0 && words !== "") items.push(el("li", { class: "day" }, "No chat has these words."));
    $("chats").replaceChildren(...items);
    this.#markOpen();
    if (focused) $("chats").querySelector(`[data-id="${focused}"] .open`)?.focus();
  }

  #item({ id, title }) {
    const name = title || "New chat";
    return el("li", { "data-id": id, class: this.app.isRunning(id) ? "running" : "" },
      el("button", { type: "button", class: "open", title: name, onclick: async () => {
        await this.app.open(id);
        this.opened();
      } }, name),
      iconButton("more", `Rename, export or delete: ${name}`, (event) => this.#menu(id, event.currentTarget)));
  }

  #markOpen() {
    for (const item of $("chats").querySelectorAll("[data-id]")) {
      const open = item.dataset.id === this.app.conversation.id;
      item.classList.toggle("current", open);
      item.firstChild.toggleAttribute("aria-current", open);
    }
  }

  #moveFocus(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...$("chats").querySelectorAll(".open")];
    const at = buttons.indexOf(document.activeElement.closest("li")?.querySelector(".open"));
    buttons[at + step]?.focus();
  }

  #menu(id, button) {
    const menu = $("chat-menu");
    const entry = (name, act) => el("button", { type: "button", role: "menuitem", onclick: () => {
      menu.hidePopover();
      act();
    } }, name);
    menu.replaceChildren(
      entry("Rename", () => this.rename(id)), entry("Export as JSON", () => this.#export(id, "json")),
      entry("Export as Markdown", () => this.#export(id, "md")),
      entry("Export figures as CSV", () => this.#export(id, "csv")),
      entry("Delete", () => this.remove(id)));
    menu.onkeydown = (event) => {
      const entries = [...menu.children];
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        entries.at((entries.indexOf(document.activeElement) + step) % entries.length).focus();
      }
    };
    menu.ontoggle = (event) => { if (event.newState === "closed") button.focus(); };
    menu.showPopover();
    const at = button.getBoundingClientRect();
    menu.style.left = `${Math.max(8, Math.min(at.left, innerWidth - menu.offsetWidth - 8))}px`;
    menu.style.top = `${Math.max(8, Math.min(at.bottom + 4, innerHeight - menu.offsetHeight - 8))}px`;
    menu.firstChild.focus();
  }

  async #record(id) {
    return this.app.conversation.id === id ? this.app.conversation.record : this.app.store.load(id);
  }

  async rename(id) {
    const record = await this.#record(id);
    if (record === null) return;
    $("rename-text").value = record.title;
    const dialog = $("rename");
    dialog.returnValue = "";
    dialog.onclose = () => {
      if (dialog.returnValue === "save") this.app.rename(id, $("rename-text").value.trim());
    };
    dialog.showModal();
    $("rename-text").select();
  }

  async remove(id) {
    const record = await this.app.remove(id);
    if (record === null) return;
    toast(`Deleted “${record.title || "New chat"}”.`, { name: "Undo", act: () => this.app.restore(record) });
  }

  // ---- export and import

  async #export(id, kind) {
    const record = await this.#record(id);
    if (record === null) return;
    const name = fileName(record.title, kind);
    const conversation = new Conversation(record);
    if (kind === "json") download(name, "application/json", toJson([record]));
    if (kind === "md") download(name, "text/markdown", toMarkdown(conversation));
    if (kind === "csv") download(name, "text/csv", toCsv(conversation));
  }

  async #exportAll() {
    const headings = await this.app.store.headings();
    const records = await Promise.all(headings.map(({ id }) => this.app.store.load(id)));
    download("tessera-chats.json", "application/json", toJson(records.filter((record) => record)));
  }

  async #import() {
    const [file] = $("import-file").files;
    $("import-file").value = "";
    if (!file) return;
    try {
      const records = fromJson(await file.text());
      for (const record of records) await this.app.store.save(record);
      this.show();
      toast(`Imported ${records.length} ${records.length === 1 ? "chat" : "chats"}.`);
    } catch (error) {
      toast(`${file.name} was not imported: ${error.message}`, { alert: true });
    }
  }
}
