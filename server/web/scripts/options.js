// The settings of a chat: one line each, in the order of the form. `name` is the field of the
// request; an empty setting is not sent, so that the server's default holds.

const number = (name, label, min, max, step, normal, help) =>
  ({ name, label, kind: "number", min, max, step, normal, help });

export const kSampling = [
  number("temperature", "Temperature", 0, 100, 0.1, "1",
         "Higher is more varied; 0 always takes the likeliest token."),
  number("top_p", "Top p", 0.01, 1, 0.01, "1",
         "Chooses among the likeliest tokens that together reach this probability."),
  number("top_k", "Top k", 0, 1000000, 1, "all", "Chooses among this many of the likeliest tokens."),
  number("min_p", "Min p", 0, 1, 0.01, "0",
         "Leaves out tokens less likely than this share of the likeliest."),
  number("repetition_penalty", "Repetition penalty", 0.01, 10, 0.05, "1",
         "Above 1, tokens of prompt and answer become less likely."),
  number("presence_penalty", "Presence penalty", -2, 2, 0.1, "0",
         "Above 0, tokens that the answer has already become less likely."),
  number("frequency_penalty", "Frequency penalty", -2, 2, 0.1, "0",
         "The same, as often as the answer has them."),
  number("max_tokens", "Max tokens", 1, 10000000, 1, "context",
         "Ends the answer after this many tokens."),
  number("min_tokens", "Min tokens", 0, 10000000, 1, "0", "The answer does not end before."),
  number("seed", "Seed", 0, Number.MAX_SAFE_INTEGER, 1, "new each time",
         "The same seed and chat give the same answer."),
  { name: "stop", label: "Stop texts", kind: "lines",
    help: "One a line. The answer ends before the first of them." },
  { name: "logit_bias", label: "Logit bias", kind: "json", shape: "object",
    help: "Token ids and the numbers added to their logits, from -100 to 100, as in {\"50256\": -100}." },
  { name: "ignore_eos", label: "Ignore the end token", kind: "switch",
    help: "Goes on until the maximum number of tokens." },
  { name: "deterministic", label: "Deterministic", kind: "switch",
    help: "The text does not depend on other requests; prefixes that were demoted are not used." },
];

export const kCache = [
  { name: "kv_preset", label: "KV preset", kind: "preset" },
  { name: "kv_fields", label: "Changed fields", kind: "lines",
    help: "One a line, such as keep_share=0.5. They change the preset for this chat." },
  { name: "cache_accept", label: "Coarsest cached format", kind: "text", normal: "any",
    help: "Prefixes that were demoted below this format are computed again." },
  { name: "cache_salt", label: "Cache salt", kind: "text", normal: "none",
    help: "Prefixes are shared only between chats with this salt." },
  { name: "no_cache", label: "Without the prefix cache", kind: "switch",
    help: "Computes the whole prompt at every turn." },
];

export const kOutput = [
  { name: "schema", label: "JSON schema of the answer", kind: "json", shape: "object",
    help: "The answer is constrained to this schema. A server without such support refuses it." },
  { name: "tools", label: "Tools", kind: "json", shape: "array",
    help: "OpenAI's list of functions. You answer the calls in the chat." },
  { name: "tool_choice", label: "Tool choice", kind: "text", normal: "auto",
    help: "auto, none, required, or the name of one function." },
];

export const kOptions = [...kSampling, ...kCache, ...kOutput];

const kTexts = new Set(["lines", "json", "text", "preset"]);

// Returns: the settings of `given` that the page knows, with values of their kind. Everything else
// is left out, so that a file's text cannot reach further.
export function knownSettings(given) {
  const known = {};
  if (typeof given !== "object" || given === null) return known;
  for (const { name, kind } of [...kOptions, { name: "model", kind: "text" }]) {
    if (!Object.hasOwn(given, name)) continue;
    const value = given[name];
    const right = kind === "number" ? Number.isFinite(value)
                : kind === "switch" ? value === true
                : kTexts.has(kind) && typeof value === "string" && value !== "";
    if (right) known[name] = value;
  }
  return known;
}

// Returns: the error of a value of the form, or "".
export function problemOf(option, value) {
  if (option.kind === "number") {
    if (!Number.isFinite(value)) return "must be a number";
    if (value < option.min || value > option.max) return `must be ${option.min} to ${option.max}`;
    return option.step === 1 && !Number.isInteger(value) ? "must be a whole number" : "";
  }
  if (option.kind === "json") {
    try {
      const parsed = JSON.parse(value);
      const shape = Array.isArray(parsed) ? "array" : typeof parsed;
      return shape === option.shape && parsed !== null ? "" : `must be a JSON ${option.shape}`;
    } catch (error) {
      return error.message;
    }
  }
  if (option.name === "kv_fields") {
    return lines(value).every((line) => /^\w+=\S+$/.test(line)) ? "" : "each line must be name=value";
  }
  return "";
}

export const lines = (text) => text.split("\n").map((line) => line.trim()).filter((line) => line);
