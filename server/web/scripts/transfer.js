// Export and import of conversations. A file may come from anywhere: only known fields of the right
// kind are taken over, under new ids.

import { newId, titleOf } from "./conversation.js";
import { knownSettings } from "./options.js";

const kFormat = "tessera-chats";
const kMaxBytes = 64 << 20;
const kMaxMessages = 20000;  // of one conversation
const kRoles = new Set(["user", "assistant", "tool"]);

// ---- export

export function toJson(records) {
  return JSON.stringify({ format: kFormat, version: 1, conversations: records }, null, 1);
}

const kSpeakers = { user: "You", assistant: "Assistant", tool: "Tool" };

export function toMarkdown(conversation) {
  const parts = [`# ${conversation.record.title || "Chat"}`];
  if (conversation.record.system) parts.push(`**System**\n\n${conversation.record.system}`);
  for (const message of conversation.path()) {
    parts.push(`**${kSpeakers[message.role]}**\n\n${message.content}`);
  }
  return parts.join("\n\n") + "\n";
}

// A cell for spreadsheets. They compute texts that begin with = + - @ or a control character, so such a
// text gets an apostrophe before it (OWASP, CSV injection).
function cell(value) {
  if (typeof value === "number") return String(value);
  const text = String(value ?? "");
  const safe = /^[\s]*[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
}

export function toCsv(conversation) {
  const rows = [["role", "text", "prompt_tokens", "cached_tokens", "completion_tokens",
                 "first_token_ms", "tokens_per_second", "kv_policy", "kv_bytes", "f16_bytes"]];
  for (const { role, content, figures: f } of conversation.path()) {
    rows.push([role, content, f?.prompt, f?.cached, f?.tokens, f && Math.round(f.first),
               f?.rate && Math.round(f.rate * 10) / 10, f?.kv?.policy, f?.kv?.bytes, f?.kv?.f16]);
  }
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// Returns: a title as the name of a file on any system.
export function fileName(title, suffix) {
  const plain = title.normalize("NFKD").replace(/[^\w]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 50);
  return `${plain || "chat"}.${suffix}`;
}

// ---- import

const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const textOf = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) && value > 0 && value < 8.64e15 ? value : Date.now());
const numberOrNull = (value) => (Number.isFinite(value) ? value : null);

function readFigures(given) {
  if (!isObject(given) || !Number.isFinite(own(given, "first"))) return undefined;
  const kv = own(given, "kv");
  return {
    first: given.first, tokens: numberOrNull(own(given, "tokens")) ?? 0,
    rate: numberOrNull(own(given, "rate")), prompt: numberOrNull(own(given, "prompt")),
    cached: numberOrNull(own(given, "cached")),
    kv: !isObject(kv) ? null : { policy: textOf(own(kv, "policy")),
      ...Object.fromEntries(["bytes", "f16", "high", "low", "dropped"].map(
        (name) => [name, numberOrNull(own(kv, name)) ?? 0])) },
  };
}

function readMessage(given, ids, number) {
  const wrong = (what) => new Error(`message ${number + 1}: ${what}`);
  if (!isObject(given)) throw wrong("is not an object");
  const role = own(given, "role");
  if (!kRoles.has(role)) throw wrong("its role is not user, assistant or tool");
  const parent = own(given, "parent") ?? null;
  // Parents come first, so the messages form a tree.
  if (parent !== null && !ids.has(parent)) throw wrong("its parent is not before it");
  const message = { id: newId(), parent: parent === null ? null : ids.get(parent), role,
                    content: textOf(own(given, "content")) };
  for (const name of ["reasoning", "error", "finish", "toolCallId"]) {
    if (textOf(own(given, name)) !== "") message[name] = given[name];
  }
  if (["stopped", "failed"].includes(own(given, "state"))) message.state = given.state;
  const calls = own(given, "toolCalls");
  if (Array.isArray(calls)) {
    message.toolCalls = calls.slice(0, 128).filter(isObject).map((call) => ({
      id: textOf(own(call, "id")), name: textOf(own(call, "name")),
      arguments: textOf(own(call, "arguments")) }));
  }
  const figures = readFigures(own(given, "figures"));
  if (figures) message.figures = figures;
  if (typeof own(given, "id") === "string") ids.set(given.id, message.id);
  return message;
}

function readConversation(given) {
  if (!isObject(given)) throw new Error("a conversation is not an object");
  const messages = own(given, "messages");
  if (!Array.isArray(messages)) throw new Error("a conversation has no list of messages");
  if (messages.length > kMaxMessages) throw new Error(`a conversation has more than ${kMaxMessages} messages`);
  const ids = new Map();
  const read = messages.map((message, number) => readMessage(message, ids, number));
  const leaf = ids.get(own(given, "leaf")) ?? read.at(-1)?.id ?? null;
  return { id: newId(), title: titleOf(textOf(own(given, "title"))), named: own(given, "named") === true,
           created: time(own(given, "created")), updated: time(own(given, "updated")),
           system: textOf(own(given, "system")), settings: knownSettings(own(given, "settings")),
           leaf, messages: read };
}

// Returns: the conversations of an exported file. Throws an Error with the reason if it is invalid.
export function fromJson(text) {
  if (text.length > kMaxBytes) throw new Error("the file is larger than 64 MiB");
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`not JSON: ${error.message}`);
  }
  if (!isObject(file) || own(file, "format") !== kFormat || !Array.isArray(own(file, "conversations"))) {
    throw new Error("not an export of this page");
  }
  if (own(file, "version") !== 1) throw new Error(`version ${String(own(file, "version"))} is not known`);
  return file.conversations.map(readConversation);
}
