// Prometheus text, and the rates between two readings of it.

// Returns: a map of name to [{ labels: Map, value }].
export function parseMetrics(text) {
  const families = new Map();
  for (const line of text.split("\n")) {
    const parts = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parts) continue;
    const labels = new Map();
    for (const [, name, value] of (parts[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels.set(name, value);
    if (!families.has(parts[1])) families.set(parts[1], []);
    families.get(parts[1]).push({ labels, value: Number(parts[3]) });
  }
  return families;
}

const valueOf = (metrics, name) => metrics?.get(name)?.reduce((sum, { value }) => sum + value, 0) ?? 0;

// Mean of a histogram's observations between two readings, or null without any.
function meanBetween(before, now, name) {
  const count = valueOf(now, `${name}_count`) - valueOf(before, `${name}_count`);
  const sum = valueOf(now, `${name}_sum`) - valueOf(before, `${name}_sum`);
  return count > 0 ? sum / count : null;
}

// seconds: between the readings. before: null at the first one.
export function reading(before, now, seconds) {
  const generated = valueOf(now, "vllm:generation_tokens_total");
  const prompt = valueOf(now, "vllm:prompt_tokens_total");
  const rate = (name, value) => (before ? Math.max(0, value - valueOf(before, name)) / seconds : null);
  return {
    running: valueOf(now, "vllm:num_requests_running"),
    waiting: valueOf(now, "vllm:num_requests_waiting"),
    usage: valueOf(now, "vllm:kv_cache_usage_perc"),
    generated: rate("vllm:generation_tokens_total", generated),
    prompt: rate("vllm:prompt_tokens_total", prompt),
    first: before ? meanBetween(before, now, "vllm:time_to_first_token_seconds") : null,
    gap: before ? meanBetween(before, now, "vllm:inter_token_latency_seconds") : null,
  };
}
