// One answer that streams into a message.

import { api, ServerError } from "./api.js";
import { chatBody, continueBody, continueTokensBody, wireMessages } from "./request.js";
import { Stopwatch } from "./figures.js";

const kSaveEvery = 2000;  // milliseconds

// Adds the parts of tool calls that a chunk brings: arguments arrive in pieces.
function addToolCalls(message, deltas) {
  message.toolCalls ??= [];
  for (const delta of deltas) {
    const index = Number.isInteger(delta.index) && delta.index >= 0 && delta.index < 128 ? delta.index : 0;
    while (message.toolCalls.length <= index) message.toolCalls.push({ id: "", name: "", arguments: "" });
    const call = message.toolCalls[index];
    call.id = delta.id ?? call.id;
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
  }
}

// Returns: true if the chunk brought text.
function addChunk(message, chunk) {
  const choice = chunk.choices?.[0];
  if (!choice) return false;
  message.finish = choice.finish_reason ?? message.finish;
  const delta = choice.delta ?? { content: choice.text };
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  if (delta.content) message.content += delta.content;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if (delta.tool_calls) addToolCalls(message, delta.tool_calls);
  return Boolean(delta.content || reasoning || delta.tool_calls);
}

export class Run {
  #abort = new AbortController();

  // changed: called after each chunk and at the end. save: stores the conversation.
  constructor(conversation, message, { changed, save }) {
    this.conversation = conversation;
    this.message = message;
    this.changed = changed;
    this.save = save;
  }

  stop() { this.#abort.abort(); }

  // Answers the messages before the given one. Never throws: errors become the message's.
  async answer() {
    const path = this.conversation.path(this.message.parent);
    await this.#receive(() => api.chat(chatBody(this.conversation, path), this.#abort.signal));
  }

  // Goes on with the message's text.
  async continue() {
    const path = this.conversation.path(this.message.id);
    await this.#receive(() => this.#continuation(path));
  }

  async *#continuation(path) {
    const signal = this.#abort.signal;
    try {
      yield* api.chat(continueBody(this.conversation, path), signal);
      return;
    } catch (error) {
      if (!(error instanceof ServerError) || error.param !== "continue_final_message") throw error;
    }
    // The server refuses that field by name: the chat's tokens and the answer's are sent instead.
    const messages = wireMessages(this.conversation, path.slice(0, -1));
    const chat = await api.tokenize({ messages });
    const answer = await api.tokenize({ prompt: this.message.content, add_special_tokens: false });
    yield* api.complete(continueTokensBody(this.conversation, [...chat, ...answer]), signal);
  }

  async #receive(start) {
    const { message, conversation } = this;
    const watch = new Stopwatch();
    let saved = performance.now();
    message.state = "streaming";
    delete message.error;
    this.changed(this);
    try {
      for await (const chunk of start()) {
        watch.chunk(chunk, addChunk(message, chunk));
        if (performance.now() - saved > kSaveEvery) {
          saved = performance.now();
          this.save(conversation);
        }
        this.changed(this);
      }
      delete message.state;
    } catch (error) {
      message.state = error.name === "AbortError" ? "stopped" : "failed";
      if (message.state === "failed") message.error = error.message || String(error);
    }
    message.figures = watch.figures() ?? message.figures;
    if (message.figures === undefined) delete message.figures;
    conversation.touch();
    this.ended = true;
    this.changed(this);
    await this.save(conversation);
  }
}
