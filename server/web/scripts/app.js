// The state of the page: the open conversation, the answers that stream, and the store.

import { Conversation } from "./conversation.js";
import { Run } from "./run.js";

export class App extends EventTarget {
  #runs = new Map();     // by conversation id
  #removed = new Set();  // ids of deleted chats, which a run that ends later must not store again

  constructor(store) {
    super();
    this.store = store;
    this.conversation = Conversation.create();
    this.channel = new BroadcastChannel("tessera");  // the page's other tabs
    this.channel.onmessage = () => this.#emit("chats");
  }

  get running() { return this.#runs.get(this.conversation.id) ?? null; }
  isRunning(id) { return this.#runs.has(id); }

  #emit(name, detail = null) { this.dispatchEvent(new CustomEvent(name, { detail })); }

  save = async (conversation) => {
    if (this.#removed.has(conversation.record.id)) return;
    try {
      await this.store.save(conversation.record);
      this.#emit("chats");
      this.channel.postMessage("changed");
    } catch (error) {
      this.#emit("problem", `The chat could not be stored: ${error.message}`);
    }
  };

  // ---- conversations

  create() {
    if (!this.conversation.empty || this.running) {
      const { settings, system } = this.conversation.record;
      this.conversation = Conversation.create(settings, system);
    }
    this.#emit("opened");
  }

  async open(id) {
    const running = this.#runs.get(id);
    const record = running ? null : await this.store.load(id);
    if (!running && record === null) {
      this.#emit("problem", "This chat was deleted.");
      this.#emit("chats");
      return;
    }
    this.conversation = running ? running.conversation : new Conversation(record);
    for (const message of this.conversation.record.messages) {
      // The page was closed while it streamed.
      if (message.state === "streaming" && !running) message.state = "stopped";
    }
    this.#emit("opened");
  }

  async rename(id, title) {
    const record = this.conversation.id === id ? this.conversation.record : await this.store.load(id);
    if (record === null) return;
    record.title = title;
    record.named = title !== "";
    await this.save({ record });
    this.#emit("titled");
  }

  // Returns: the record, which restore() takes back.
  async remove(id) {
    const run = this.#runs.get(id);
    const record = run?.conversation.record ??
      (this.conversation.id === id ? this.conversation.record : await this.store.load(id));
    this.#removed.add(id);
    run?.stop();
    await this.store.remove(id);
    this.channel.postMessage("changed");
    if (this.conversation.id === id) {
      this.conversation = Conversation.create(record.settings, record.system);
      this.#emit("opened");
    }
    this.#emit("chats");
    return record;
  }

  restore(record) {
    this.#removed.delete(record.id);
    return this.save({ record });
  }

  // ---- messages

  send(text) {
    const { conversation } = this;
    conversation.add(conversation.record.leaf, "user", { content: text });
    return this.#answer();
  }

  // Another text in the place of a message, as a branch.
  edit(message, text) {
    this.conversation.add(message.parent, message.role, { content: text });
    return message.role === "user" ? this.#answer() : this.#changed();
  }

  again(message) {
    this.conversation.record.leaf = message.parent;
    return this.#answer();
  }

  continue(message) {
    const run = this.#start(message);
    return this.#finish(run, run.continue());
  }

  // The results of all calls of a message's tools; then the model goes on.
  answerCalls(message, results) {
    let parent = message.id;
    for (const [call, content] of results) {
      parent = this.conversation.add(parent, "tool", { content, toolCallId: call.id, name: call.name }).id;
    }
    return this.#answer();
  }

  show(message) {
    this.conversation.show(message);
    return this.#changed();
  }

  stop() { this.running?.stop(); }

  async #changed() {
    this.#emit("messages");
    await this.save(this.conversation);
  }

  #answer() {
    const { conversation } = this;
    const message = conversation.add(conversation.record.leaf, "assistant", { content: "" });
    const run = this.#start(message);
    return this.#finish(run, run.answer());
  }

  #start(message) {
    const run = new Run(this.conversation, message, {
      changed: (changed) => this.#emit("answer", changed), save: this.save });
    this.#runs.set(this.conversation.id, run);
    this.#emit("messages");
    return run;
  }

  async #finish(run, answered) {
    await this.save(run.conversation);
    await answered;
    this.#runs.delete(run.conversation.id);
    this.#emit("ended", run);
    this.#emit("chats");
  }
}
