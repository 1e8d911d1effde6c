// A conversation: a tree of messages. Editing a message or asking for another answer adds a branch;
// `leaf` is the end of the one that is shown. Records are plain data, as the store keeps them.

export const newId = () => crypto.randomUUID();

// Fields of a message, besides id, parent and role. All are optional.
//   content, reasoning  texts
//   toolCalls           [{ id, name, arguments }]
//   toolCallId          of a message with the role `tool`: the call that it answers
//   state               "streaming", "stopped", "failed"; absent: complete
//   error               of a failed answer, for the reader; never sent
//   finish              the server's finish_reason
//   figures             { first, seconds, tokens, rate, prompt, cached, kv } (figures.js)

export class Conversation {
  #byId = new Map();

  constructor(record) {
    this.record = record;
    for (const message of record.messages) this.#byId.set(message.id, message);
  }

  // Small models ramble at the server's default of 1.
  static create(settings = { temperature: 0.7 }, system = "") {
    const now = Date.now();
    return new Conversation({ id: newId(), title: "", named: false, created: now, updated: now,
                              system, settings: { ...settings }, leaf: null, messages: [] });
  }

  get id() { return this.record.id; }
  get empty() { return this.record.messages.length === 0; }
  message(id) { return this.#byId.get(id) ?? null; }

  // Returns: the messages that are shown, from the first on. `to`: the last of them.
  path(to = this.record.leaf) {
    const path = [];
    for (let at = this.message(to); at !== null; at = this.message(at.parent)) path.push(at);
    return path.reverse();
  }

  // Returns: the messages that could stand in its place, itself included, oldest first.
  branches(message) {
    return this.record.messages.filter((other) => other.parent === message.parent);
  }

  // Adds a message behind `parent` (null: at the start), and shows it.
  add(parent, role, fields) {
    const message = { id: newId(), parent, role, ...fields };
    this.record.messages.push(message);
    this.#byId.set(message.id, message);
    this.record.leaf = message.id;
    if (!this.record.named && role === "user" && this.record.title === "") {
      this.record.title = titleOf(message.content);
    }
    this.touch();
    return message;
  }

  // Shows the branch of `message`, along its newest messages.
  show(message) {
    let leaf = message;
    for (let next = message; next; leaf = next ?? leaf) {
      next = this.record.messages.findLast((other) => other.parent === leaf.id);
    }
    this.record.leaf = leaf.id;
  }

  // Takes out a message that nothing follows. Its parent's branch is shown.
  remove(message) {
    this.record.messages = this.record.messages.filter((other) => other !== message);
    this.#byId.delete(message.id);
    if (this.record.leaf === message.id) {
      const parent = this.message(message.parent);
      if (parent) this.show(parent);
      else this.record.leaf = this.record.messages.findLast((m) => m.parent === null)?.id ?? null;
    }
    this.touch();
  }

  touch() { this.record.updated = Date.now(); }
}

export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 57).trimEnd() + "…" : line;
}
