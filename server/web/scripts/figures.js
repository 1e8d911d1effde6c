// Times and tokens of an answer: measured here, and reported by the server.

// Measures the arrival of an answer. Each chunk says how many tokens there are by then, so a rate
// does not depend on how the network groups them.
export class Stopwatch {
  #sent = performance.now();
  #first = null;  // { time, tokens } of the first chunk with text
  #last = null;
  #tokens = 0;
  #usage = null;

  chunk(chunk, hasText) {
    const usage = chunk.usage;
    if (usage) {
      this.#usage = { ...this.#usage, ...usage };
      this.#tokens = usage.completion_tokens ?? this.#tokens;
    }
    if (!hasText) return;
    this.#last = { time: performance.now(), tokens: this.#tokens };
    this.#first ??= this.#last;
  }

  // Returns: figures as a message keeps them, or null if nothing arrived.
  figures() {
    if (this.#first === null) return null;
    const usage = this.#usage ?? {};
    const decoding = (this.#last.time - this.#first.time) / 1000;
    const later = this.#last.tokens - this.#first.tokens;
    return {
      first: this.#first.time - this.#sent,
      tokens: usage.completion_tokens ?? this.#tokens,
      // Over less than 50 ms the clock of a browser says little: no rate is better than a wrong one.
      rate: decoding >= 0.05 && later > 0 ? later / decoding : null,
      prompt: usage.prompt_tokens ?? null,
      cached: usage.prompt_tokens_details?.cached_tokens ?? null,
      kv: kvOf(usage.kv_cache),
    };
  }
}

function kvOf(usage) {
  if (!usage) return null;
  return { policy: String(usage.policy), bytes: Number(usage.bytes), f16: Number(usage.f16_bytes),
           high: Number(usage.tokens?.high ?? 0), low: Number(usage.tokens?.low ?? 0),
           dropped: Number(usage.tokens?.dropped ?? 0) };
}

export function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; Math.abs(bytes) >= 1024 && unit < units.length - 1; ++unit) bytes /= 1024;
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

export function secondsText(seconds) {
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

export const countText = (count) => count.toLocaleString("en-US");
export const percentText = (share) => `${Math.round(100 * share)} %`;

// Returns: the figures in words, for the line below an answer.
export function figuresText(figures, finish) {
  const parts = [`first token after ${secondsText(figures.first / 1000)}`];
  if (figures.tokens > 0) parts.push(`${countText(figures.tokens)} ${figures.tokens === 1 ? "token" : "tokens"}`);
  if (figures.rate !== null) parts.push(`${figures.rate.toFixed(figures.rate < 10 ? 1 : 0)} tokens/s`);
  if (figures.prompt && figures.cached !== null) {
    parts.push(`${percentText(figures.cached / figures.prompt)} of the prompt cached`);
  }
  if (finish === "length") parts.push("stopped at the limit");
  return parts.join(" · ");
}
