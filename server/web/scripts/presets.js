// A sentence for each KV preset that the server may name in GET /v1/cache.

const kSentences = new Map(Object.entries({
  "f32": "Keeps every key and value in 32 bits: the reference, and four times the bytes of k8v4.",
  "f16": "Keeps every key and value in 16 bits, as most servers do.",
  "k8v8": "Stores keys and values in 8 bits; differences from f16 are rarely seen.",
  "k8v4": "Stores keys in 8 bits and values in 4: the usual choice, about 2.5 times smaller than f16.",
  "k8v2": "Stores keys in 8 bits and values in 2, for texts where few details matter.",
  "k4v4": "Stores keys and values in 4 bits, more than three times smaller than f16.",
  "k4v2": "Stores keys in 4 bits and values in 2: the smallest without rotation and without leaving tokens out.",
  "k6v4r": "Stores rotated keys in 6 bits and values in 4, in fewer bytes than k8v4.",
  "k4v4r": "As k4v4, of rotated keys and values, which loses less where a few channels are large.",
  "k4v2r": "As k4v2, of rotated keys and values, which loses less where a few channels are large.",
  "k4v3r": "As k4v4r, with values in 3 bits.",
  "k3v3r": "Stores rotated keys and values in 3 bits: about the bytes of k4v2.",
  "k3v2r": "As k3v3r, with values in 2 bits: the fewest bytes without leaving tokens out.",
  "fp8": "Stores keys and values as floats of 8 bits, as vLLM's fp8 does.",
  "leankv": "Keeps important tokens in 8 and 4 bits, others in 4 and 2, and drops the least important.",
  "leankv-aggressive": "As leankv, with thresholds that demote and drop more tokens.",
  "mustafar-50": "Keeps the larger half of each key and value's channels.",
  "mustafar-70": "Keeps the largest three tenths of each key and value's channels.",
  "h2o": "Keeps the tokens that attracted the most attention, and the newest.",
  "kv-compress": "Drops tokens head by head, most where heads attend to few of them.",
  "snapkv": "Keeps the prompt tokens that the end of the prompt attends to.",
  "pyramidkv": "As snapkv, with more tokens in the lower layers than in the upper ones.",
  "adakv": "As snapkv, with the budget divided over heads by the attention of each.",
  "scissorhands": "Keeps the tokens that recent queries found important again and again.",
  "a2sf": "Sums up attention and forgets old sums, so that early tokens have no advantage.",
  "keyformer": "Chooses the tokens to keep by scores with noise, which correct for dropped tokens.",
  "zigzagkv": "Divides the budget over layers by how many tokens each needs.",
  "windowkv": "As pyramidkv, but keeps and drops runs of eight tokens.",
  "kvcrush": "As snapkv in runs of eight tokens; a quarter of the kept runs stand for dropped ones.",
  "lazyeviction": "Drops a token only after it has stayed unimportant for a while.",
  "duoattention": "Half of the heads keep everything, the others the first and the newest tokens.",
  "razorattention": "The heads that search the whole text keep everything, the others a fifth of it.",
  "compresskv": "As snapkv, with the budget divided over heads by the model's loss without each.",
  "kvzip-50": "Repeats each part of a text to itself, and keeps the half that it needs to do so.",
  "kvzip-25": "As kvzip-50, with a quarter.",
  "replay-50": "Repeats each part of a text to itself, and keeps the half that changes its reading most.",
  "replay-37": "As replay-50, with three eighths.",
  "replay-31": "As replay-50, with five sixteenths, in the format of k6v4r.",
  "replay-25": "As replay-50, with a quarter.",
  "k8v4-quest": "As k8v4; an answer reads only the quarter of the pages that may matter most.",
  "streaming": "Keeps the first tokens and the newest, and drops the middle.",
}));

const kFormat = /^(?:s(\d+(?:v[\d.]+)?)-?)?(?:k(\d)v(\d))?$/;

// Returns: one sentence on the preset. Formats without a line of their own are described by name.
export function sentenceOf(preset) {
  const sentence = kSentences.get(preset);
  if (sentence) return sentence;
  const parts = kFormat.exec(preset);
  if (parts === null || (!parts[1] && !parts[2])) return "A preset of this server's own settings.";
  const sparse = parts[1] ? `drops the smallest ${parts[1].replace("v", " % (keys) and ")} % of channels` : "";
  const bits = parts[2] ? `stores keys in ${parts[2]} bits and values in ${parts[3]}` : "";
  const sentenceParts = [sparse, bits].filter((part) => part).join(" and ");
  return sentenceParts[0].toUpperCase() + sentenceParts.slice(1) + ".";
}
