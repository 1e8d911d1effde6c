// Joins the parts of the page.

import { $, el } from "./dom.js";
import { api } from "./api.js";
import { App } from "./app.js";
import { Drawers } from "./drawers.js";
import { announce, toast } from "./toast.js";
import { bindKeys } from "./keys.js";
import { growWithText } from "./messages.js";
import { Log } from "./log.js";
import { openStore } from "./store.js";
import { Panel } from "./panel.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { bindTheme } from "./theme.js";

const app = new App(await openStore());
const log = new Log(app);
const settings = new Settings(app);
const panel = new Panel(app);
const drawers = new Drawers({ changed: (name, open) => { if (name === "panel") panel.open = open; } });
const sidebar = new Sidebar(app, { opened: () => {
  if (drawers.isOver("sidebar")) drawers.set("sidebar", false);
  $("input").focus();
} });
const fitInput = growWithText($("input"));

function showTitle() {
  const title = app.conversation.record.title;
  $("title").textContent = title || "New chat";
  document.title = title ? `${title} · Tessera` : "Tessera";
}

function showRunning() {
  const running = app.running !== null;
  const button = $("send");
  button.setAttribute("aria-label", running ? "Stop" : "Send");
  button.querySelector("use").setAttribute("href", running ? "#icon-stop" : "#icon-send");
  button.disabled = !running && $("input").value.trim() === "";
}

function showChat() {
  showTitle();
  showRunning();
  showModel();
  log.show();
}

function send() {
  const text = $("input").value.trim();
  if (text === "" || app.running) return;
  $("input").value = "";
  fitInput();
  log.follow();
  announce("Sent.");
  app.send(text);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (app.running) app.stop();
  else send();
});
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
$("input").addEventListener("input", showRunning);

app.addEventListener("opened", showChat);
app.addEventListener("titled", showTitle);
app.addEventListener("messages", showChat);
app.addEventListener("answer", ({ detail: run }) => { if (!run.ended) log.change(run.message); });
app.addEventListener("ended", ({ detail: run }) => {
  if (run.conversation !== app.conversation) return;
  showChat();
  const words = { failed: `The answer failed: ${run.message.error}`, stopped: "Stopped." };
  announce(words[run.message.state] ?? `Answered: ${run.message.content.slice(0, 2000)}`);
});
app.addEventListener("problem", ({ detail }) => toast(detail, { alert: true }));

// ---- the server

let models = [];

function showModel() {
  const chosen = app.conversation.record.settings.model ?? models[0]?.id ?? "";
  const names = models.some(({ id }) => id === chosen) ? models.map(({ id }) => id) : [chosen, ...models.map(({ id }) => id)];
  $("model").replaceChildren(...names.filter((name) => name).map((name) => el("option", { value: name }, name)));
  $("model").value = chosen;
  $("model").disabled = names.length < 2;
  $("model").title = chosen;
}

$("model").addEventListener("change", () => {
  app.conversation.record.settings.model = $("model").value;
  if (!app.conversation.empty) app.save(app.conversation);
});

async function askServer() {
  try {
    models = await api.models();
    settings.setPresets((await api.cache()).presets ?? []);
    showModel();
  } catch (error) {
    toast(`The server does not answer: ${error.message}`, { name: "Try again", act: askServer, alert: true });
  }
}

// A form sends by its first button, so those that close a dialog must be none of its own.
for (const button of document.querySelectorAll("[data-dismiss]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
bindTheme();
bindKeys({ app, sidebar, settings, drawers, log });
showChat();
sidebar.show();
askServer();
$("input").focus();
document.documentElement.dataset.ready = "";
if (!app.store.persistent) toast("This browser keeps no data for this page: chats end with it.", { alert: true });
