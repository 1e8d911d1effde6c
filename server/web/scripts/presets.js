// A sentence for each KV preset that the server may name in GET /v1/cache.

const kSentences = new Map(Object.entries({
  "f16": "Keeps every key and value in 16 bits, as most servers do.",
  "k8v8": "Stores keys and values in 8 bits; differences from f16 are rarely seen.",
  "k8v4": "Stores keys in 8 bits and values in 4: the usual choice, about 2.5 times smaller than f16.",
  "fp8": "Stores keys and values as floats of 8 bits, as vLLM's fp8 does.",
  "leankv": "Keeps important tokens in 8 and 4 bits, others in 4 and 2, and drops the least important.",
  "mustafar-70": "Keeps the largest three tenths of each key and value's channels.",
  "kv-compress": "Drops tokens head by head, most where heads attend to few of them.",
  "snapkv": "Keeps the prompt tokens that the end of the prompt attends to.",
  "streaming": "Keeps the first tokens and the newest, and drops the middle.",
  "retrieval-50": "The half of the heads that search the text keep everything, the others the newest tokens.",
  "replay-50": "Repeats each part of a text to itself, and keeps the half that changes its reading most.",
  "replay-31": "As replay-50, with five sixteenths, in the format of k6v4r.",
  "k8v4-quest": "As k8v4; an answer reads only the quarter of the pages that may matter most.",
}));

const kFormat = /^(?:s(\d+(?:v[\d.]+)?)-?)?(?:k(\d)v(\d)(r?))?$/;

// Returns: one sentence on the preset. Formats without a line of their own are described by name.
export function sentenceOf(preset) {
  const sentence = kSentences.get(preset);
  if (sentence) return sentence;
  const parts = kFormat.exec(preset);
  if (parts === null || (!parts[1] && !parts[2])) return "A preset of this server's own settings.";
  const sparse = parts[1] ? `drops the smallest ${parts[1].replace("v", " % (keys) and ")} % of channels` : "";
  const kind = parts[4] ? "rotated keys" : "keys";
  const bits = parts[2] ? `stores ${kind} in ${parts[2]} bits and values in ${parts[3]}` : "";
  const sentenceParts = [sparse, bits].filter((part) => part).join(" and ");
  return sentenceParts[0].toUpperCase() + sentenceParts.slice(1) + ".";
}
