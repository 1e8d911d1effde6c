// The body of a request, from a conversation and its settings.

import { lines } from "./options.js";

// Settings that are fields of the body as they stand.
const kPlain = ["model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
                "presence_penalty", "frequency_penalty", "max_tokens", "min_tokens", "seed",
                "ignore_eos", "deterministic", "cache_salt"];

function toolChoice(name) {
  return ["auto", "none", "required"].includes(name) ? name
                                                     : { type: "function", function: { name } };
}

function kvCache(settings) {
  const fields = {};
  if (settings.kv_preset) fields.preset = settings.kv_preset;
  for (const line of lines(settings.kv_fields ?? "")) {
    const [name, value] = line.split(/=(.*)/s);
    const plain = value === "true" || value === "false" || (value !== "" && !isNaN(value));
    fields[name] = plain ? JSON.parse(value) : value;
  }
  return fields;
}

// Returns: the fields of a body that the settings set.
export function settingFields(settings) {
  const body = {};
  for (const name of kPlain) {
    if (settings[name] !== undefined) body[name] = settings[name];
  }
  if (settings.stop) body.stop = lines(settings.stop);
  if (settings.logit_bias) body.logit_bias = JSON.parse(settings.logit_bias);
  const kv = kvCache(settings);
  if (Object.keys(kv).length > 0) body.kv_cache = kv;
  if (settings.cache_accept) body.cache = { accept: settings.cache_accept };
  if (settings.no_cache) body.cache_prompt = false;
  if (settings.schema) {
    body.response_format = { type: "json_schema", json_schema: {
      name: "answer", strict: true, schema: JSON.parse(settings.schema) } };
  }
  if (settings.tools) {
    body.tools = JSON.parse(settings.tools);
    if (settings.tool_choice) body.tool_choice = toolChoice(settings.tool_choice);
  }
  return body;
}

// A failed answer without text says nothing to the model.
const isSent = (message) => message.role !== "assistant" || message.content !== "" ||
                            (message.toolCalls ?? []).length > 0;

function wireMessage(message) {
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.toolCallId, content: message.content };
  }
  const wire = { role: message.role, content: message.content };
  if (message.toolCalls?.length > 0) {
    wire.tool_calls = message.toolCalls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return wire;
}

// Returns: the chat's messages as the server takes them.
export function wireMessages(conversation, path) {
  const messages = path.filter(isSent).map(wireMessage);
  const system = conversation.record.system.trim();
  return system === "" ? messages : [{ role: "system", content: system }, ...messages];
}

const kStream = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };

export function chatBody(conversation, path) {
  return { ...settingFields(conversation.record.settings), ...kStream,
           messages: wireMessages(conversation, path) };
}

// A body that continues the last message of `path`, which is an answer.
export function continueBody(conversation, path) {
  return { ...chatBody(conversation, path), continue_final_message: true,
           add_generation_prompt: false };
}

// The same over /v1/completions, for a server that knows no continue_final_message. `prompt`: the
// chat's tokens and those of the answer so far.
export function continueTokensBody(conversation, prompt) {
  const body = { max_tokens: -1, ...settingFields(conversation.record.settings), ...kStream, prompt };
  delete body.tools;
  delete body.tool_choice;
  return body;
}
