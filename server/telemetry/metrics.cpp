#include "server/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/commit.h"

namespace tessera {

namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;
using Labels = prometheus::Labels;

// Bucket bounds. A first token waits for queue and prefill, later tokens for one step, a whole
// request for all steps.
const Buckets kFirstTokenSeconds{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                 0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
const Buckets kTokenSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                            0.2,   0.3,    0.4,   0.5,  0.75,  1,    2.5,   5};
const Buckets kRequestSeconds{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480};
const Buckets kCounts{1, 2, 5, 10, 20};
const Buckets kTokens{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10'000, 20'000, 50'000};

// Values of the label `finished_reason`, by FinishReason. Dashboards expect these words.
constexpr std::string_view kReasons[] = {"stop", "length", "abort", "error"};

static_assert(static_cast<std::size_t>(FinishReason::failed) == 3);

// Metric families of the engine's own counters, at one moment.
class Snapshot {
 public:
  explicit Snapshot(const Labels& common) : common_(common) {}

  void gauge(const std::string& name, const std::string& help, double value,
             const Labels& labels = {}) {
    prometheus::ClientMetric metric = labelled(labels);
    metric.gauge.value = value;
    add({name, help, prometheus::MetricType::Gauge, {}}, std::move(metric));
  }

  void counter(const std::string& name, const std::string& help, int64_t value,
               const Labels& labels = {}) {
    prometheus::ClientMetric metric = labelled(labels);
    metric.counter.value = static_cast<double>(value);
    add({name, help, prometheus::MetricType::Counter, {}}, std::move(metric));
  }

  std::vector<prometheus::MetricFamily> take() { return std::move(families_); }

 private:
  prometheus::ClientMetric labelled(const Labels& labels) const {
    prometheus::ClientMetric metric;
    for (const Labels* some : {&common_, &labels}) {
      for (const auto& [name, value] : *some) {
        metric.label.push_back({name, value});
      }
    }
    return metric;
  }

  // Requires: metrics of one name are added consecutively. They form one family.
  void add(prometheus::MetricFamily family, prometheus::ClientMetric metric) {
    if (families_.empty() || families_.back().name != family.name) {
      families_.push_back(std::move(family));
    }
    families_.back().metric.push_back(std::move(metric));
  }

  const Labels& common_;
  std::vector<prometheus::MetricFamily> families_;
};

// What decides whether prompts wait for the stores.
void add_store_rates(Snapshot& snapshot, const KvTierStats& stats) {
  for (const auto& [tier, seconds] :
       {std::pair("host", stats.host_block_seconds), {"disk", stats.disk_block_seconds}}) {
    snapshot.gauge("tessera:kv_tier_unit_seconds", "Time that a read of a prefix block took lately",
                   seconds, {{"tier", tier}});
  }
  snapshot.gauge("tessera:prompt_token_seconds",
                 "Time that a step took lately for each prompt token, with tiers",
                 stats.token_seconds);
  for (const auto& [choice, count] :
       {std::pair("read", stats.chosen_reads), {"compute", stats.chosen_computes}}) {
    snapshot.counter("tessera:kv_tier_choices_total",
                     "Prompts that a tier continued: read, or computed because that was faster",
                     count, {{"choice", choice}});
  }
  snapshot.gauge("tessera:kv_tier_queued_units", "Prefix blocks on their way to the tiers",
                 static_cast<double>(stats.queued_blocks));
  snapshot.gauge("tessera:kv_tier_suspended", "1: the disk does not answer, prompts are computed",
                 stats.suspended ? 1 : 0);
  snapshot.counter("tessera:kv_tier_suspensions_total", "How often the disk did not answer",
                   stats.suspensions);
}

// The stores of evicted prefix blocks. Without one its numbers are 0.
void add_stores(Snapshot& snapshot, const KvTierStats& stats) {
  struct Figure {
    const char* name;
    const char* help;
    bool counts;
    int64_t host;
    int64_t disk;
  };
  const BlockStoreStats& host = stats.host;
  const BlockStoreStats& disk = stats.disk;
  const Figure figures[] = {
      {"tessera:kv_tier_limit_bytes", "Most bytes of evicted prefix blocks, by tier", false,
       host.limit, disk.limit},
      {"tessera:kv_tier_bytes", "Bytes of evicted prefix blocks, by tier", false, host.bytes,
       disk.bytes},
      {"tessera:kv_tier_units", "Evicted prefix blocks, by tier", false, host.blocks, disk.blocks},
      {"tessera:kv_tier_read_units_total", "Prefix blocks read from a tier", true,
       stats.host_read_blocks, stats.disk_read_blocks},
      {"tessera:kv_tier_dropped_units_total", "Prefix blocks that a tier dropped for want of room",
       true, host.dropped_blocks, disk.dropped_blocks},
      {"tessera:kv_tier_damaged_units_total", "Prefix blocks of a tier that were damaged", true,
       host.damaged_blocks, disk.damaged_blocks},
      {"tessera:kv_tier_errors_total", "Reads and writes of a tier that failed", true,
       host.read_errors + host.write_errors, disk.read_errors + disk.write_errors}};
  for (const Figure& figure : figures) {
    for (const auto& [tier, value] : {std::pair("host", figure.host), {"disk", figure.disk}}) {
      const Labels labels{{"tier", tier}};
      if (figure.counts) {
        snapshot.counter(figure.name, figure.help, value, labels);
      } else {
        snapshot.gauge(figure.name, figure.help, static_cast<double>(value), labels);
      }
    }
  }
  snapshot.counter("tessera:kv_tier_written_units_total", "Prefix blocks written to the tiers",
                   stats.written_blocks);
  snapshot.counter("tessera:kv_tier_written_bytes_total", "Their bytes", stats.written_bytes);
  snapshot.counter("tessera:kv_tier_unwritten_units_total",
                   "Prefix blocks that were not written because the queue was full",
                   stats.unwritten_blocks);
  snapshot.counter("tessera:kv_tier_read_bytes_total", "Bytes read from the tiers",
                   stats.read_bytes);
  snapshot.counter("tessera:kv_tier_read_microseconds_total", "Time that these reads took",
                   static_cast<int64_t>(stats.read_seconds * 1e6));
  snapshot.counter("tessera:kv_tier_restored_units_total",
                   "Prefix blocks that entered the KV cache again", stats.restored_blocks);
  snapshot.counter("tessera:kv_tier_slow_reads_total",
                   "Prompts that were computed because their blocks came too late",
                   stats.slow_reads);
  add_store_rates(snapshot, stats);
}

void add_cache(Snapshot& snapshot, const EngineStats& stats, const EngineOptions& options) {
  const auto total = static_cast<double>(stats.pages_total);
  const auto used = static_cast<double>(stats.pages_total - stats.pages_free);
  const auto page_bytes = static_cast<double>(stats.page_bytes);
  const std::string format(options.kv.name);
  // The second name is vLLM's before version 1.
  for (const char* name : {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}) {
    snapshot.gauge(name, "Share of the KV cache's bytes that sequences use, 0 to 1",
                   total > 0 ? used / total : 0);
  }
  // Routers guess by these which prompts are still cached: prompts share whole blocks.
  const int32_t block = stats.prefix_block_tokens > 0 ? stats.prefix_block_tokens : kKvGroup;
  snapshot.gauge("vllm:cache_config_info", "The KV cache's settings, as labels", 1,
                 {{"block_size", std::to_string(block)},
                  {"cache_dtype", format},
                  {"enable_prefix_caching", stats.prefix_block_tokens > 0 ? "True" : "False"},
                  {"num_gpu_blocks", std::to_string(stats.token_capacity / block)}});
  const std::string help =
      "Bytes of the KV cache by format and state; residual buffers and tables are fixed";
  const auto bytes = [&](const std::string& of, const char* state, double count) {
    snapshot.gauge("tessera:kv_bytes", help, count, {{"format", of}, {"state", state}});
  };
  for (const KvFormatPages& pages :
       std::span(stats.format_pages).first(static_cast<std::size_t>(stats.formats))) {
    const std::string of(name_of(pages.format));
    bytes(of, "private", static_cast<double>(pages.exclusive) * page_bytes);
    bytes(of, "shared", static_cast<double>(pages.shared) * page_bytes);
  }
  // Free pages, residual buffers and tables serve every format.
  bytes("any", "free", (total - used) * page_bytes);
  bytes("any", "window", static_cast<double>(stats.residual_bytes));
  bytes("any", "tables", static_cast<double>(stats.table_bytes));
  for (const FormatCheck& check : options.format_checks) {
    snapshot.gauge("tessera:kv_format_divergence_nats",
                   "Divergence of a KV format from f16 on this checkpoint, measured at a start",
                   check.divergence, {{"format", std::string(name_of(check.format))}});
  }
  snapshot.counter("tessera:kv_tightenings_total",
                   "Steps in which budgets of running sequences were tightened for want of pages",
                   stats.kv_tightenings);
  snapshot.counter("tessera:kv_replayed_tokens_total",
                   "Tokens that the model repeated to score sections, beside those of prompts",
                   stats.kv_replayed_tokens);
  snapshot.counter("tessera:kv_demotions_total",
                   "Tokens of one KV head that a policy moved to the low tier", stats.kv_demotions);
  snapshot.counter("tessera:kv_dropped_tokens_total", "Tokens of one KV head that a policy dropped",
                   stats.kv_dropped_tokens);
  const PrefixCacheStats& cache = stats.cache;
  snapshot.gauge("tessera:prefix_cache_unit_tokens",
                 "Tokens of the smallest prefix that is shared; 0: no prefix cache",
                 stats.prefix_block_tokens);
  const std::string cache_help = "Bytes of the prefix cache by whether running sequences use them";
  snapshot.gauge("tessera:prefix_cache_bytes", cache_help,
                 static_cast<double>(cache.pages - cache.unlocked_pages) * page_bytes,
                 {{"state", "used"}});
  snapshot.gauge("tessera:prefix_cache_bytes", cache_help,
                 static_cast<double>(cache.unlocked_pages) * page_bytes, {{"state", "unused"}});
  const std::string units_help =
      "Prefix blocks that were inserted, demoted, compressed to sections, evicted, or handed over "
      "to a sequence";
  const std::pair<const char*, int64_t> events[] = {{"entered", cache.inserted_blocks},
                                                    {"demoted", cache.demoted_blocks},
                                                    {"compressed", cache.compressed_blocks},
                                                    {"evicted", cache.evicted_blocks},
                                                    {"handed_over", cache.handed_over_blocks}};
  for (const auto& [event, blocks] : events) {
    snapshot.counter("tessera:prefix_cache_units_total", units_help, blocks, {{"event", event}});
  }
  add_stores(snapshot, stats.tiers);
  snapshot.gauge("tessera:kv_token_capacity", "Tokens that fit into the KV cache",
                 static_cast<double>(stats.token_capacity));
}

// The names that vLLM had before version 1, which its production-stack's router still reads.
void add_old_names(Snapshot& snapshot, double queries, double hits) {
  snapshot.counter("vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total",
                   static_cast<int64_t>(queries));
  snapshot.counter("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total",
                   static_cast<int64_t>(hits));
  snapshot.gauge("vllm:gpu_prefix_cache_hit_rate",
                 "Share of prompt tokens that were cached, 0 to 1",
                 queries > 0 ? hits / queries : 0);
}

}  // namespace

struct Metrics::Families {
  explicit Families(const std::string& model_name) : common{{"model_name", model_name}} {
    for (const std::string_view reason : kReasons) {
      finished.push_back(&success.Add({{"finished_reason", std::string(reason)}}));
    }
  }

  prometheus::Histogram& histogram(const std::string& name, const std::string& help,
                                   const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(common).Register(registry).Add(
        {}, buckets);
  }

  prometheus::Counter& counter(const std::string& name, const std::string& help) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(common).Register(registry).Add(
        {});
  }

  const Labels common;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& success = prometheus::BuildCounter()
                                                         .Name("vllm:request_success_total")
                                                         .Help("Requests that ended, by reason")
                                                         .Labels(common)
                                                         .Register(registry);
  prometheus::Family<prometheus::Counter>& rejected =
      prometheus::BuildCounter()
          .Name("tessera:requests_rejected_total")
          .Help("Requests refused at submission, by status code")
          .Labels(common)
          .Register(registry);
  prometheus::Family<prometheus::Counter>& family(const std::string& name,
                                                  const std::string& help) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(common).Register(registry);
  }

  // Returns: the counter of a tenant, or of "other".
  prometheus::Counter& of_tenant(prometheus::Family<prometheus::Counter>& counters,
                                 const std::string& tenant) {
    const std::lock_guard lock(mutex);
    const bool known = tenants.contains(tenant) || tenants.size() < kTenantLabels;
    if (known) {
      tenants.insert(tenant);
    }
    return counters.Add({{"tenant", known ? tenant : "other"}});
  }

  std::mutex mutex;
  std::set<std::string> tenants;  // that are labels; guarded by mutex
  prometheus::Family<prometheus::Counter>& tenant_requests =
      family("tessera:tenant_requests_total", "Sequences that ended, by tenant");
  prometheus::Family<prometheus::Counter>& tenant_refusals =
      family("tessera:tenant_requests_rejected_total",
             "Requests that the engine's queue refused, by tenant");
  prometheus::Family<prometheus::Counter>& tenant_prompt_tokens =
      family("tessera:tenant_prompt_tokens_total", "Prompt tokens of requests, by tenant");
  prometheus::Family<prometheus::Counter>& tenant_cached_tokens = family(
      "tessera:tenant_cached_tokens_total", "Prompt tokens taken from the prefix cache, by tenant");
  prometheus::Family<prometheus::Counter>& tenant_generation_tokens =
      family("tessera:tenant_generation_tokens_total", "Tokens generated, by tenant");
  prometheus::Family<prometheus::Counter>& tenant_queue_seconds =
      family("tessera:tenant_queue_seconds_total", "Time of waiting for a slot, by tenant");
  std::vector<prometheus::Counter*> finished;  // by FinishReason
  prometheus::Histogram& first_token = histogram(
      "vllm:time_to_first_token_seconds", "Request received to first token", kFirstTokenSeconds);
  prometheus::Histogram& next_token =
      histogram("vllm:inter_token_latency_seconds", "Gaps between tokens", kTokenSeconds);
  prometheus::Histogram& request = histogram("vllm:e2e_request_latency_seconds",
                                             "Request received to last token", kRequestSeconds);
  prometheus::Histogram& queue =
      histogram("vllm:request_queue_time_seconds", "Waiting for a slot", kRequestSeconds);
  prometheus::Histogram& prefill =
      histogram("vllm:request_prefill_time_seconds", "First slot to first token", kRequestSeconds);
  prometheus::Histogram& decode =
      histogram("vllm:request_decode_time_seconds", "First token to the end", kRequestSeconds);
  prometheus::Histogram& token = histogram("vllm:request_time_per_output_token_seconds",
                                           "Mean gap between a request's tokens", kTokenSeconds);
  prometheus::Histogram& sequences =
      histogram("vllm:request_params_n", "Sequences a request asks for", kCounts);
  prometheus::Histogram& max_tokens =
      histogram("vllm:request_params_max_tokens", "Tokens a request may generate", kTokens);
  prometheus::Counter& cache_queries =
      counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache");
  prometheus::Counter& cache_hits =
      counter("vllm:prefix_cache_hits_total", "Prompt tokens taken from the prefix cache");
  prometheus::Histogram& prompt_tokens =
      histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", kTokens);
  prometheus::Histogram& generation_tokens =
      histogram("vllm:request_generation_tokens", "Generated tokens of a request", kTokens);
};

Metrics::Metrics(const std::string& model_name)
    : families_(std::make_unique<Families>(model_name)) {}
Metrics::~Metrics() = default;

void Metrics::first_token(std::chrono::duration<double> since_received) {
  families_->first_token.Observe(since_received.count());
}

void Metrics::next_token(std::chrono::duration<double> since_previous) {
  families_->next_token.Observe(since_previous.count());
}

void Metrics::accepted(std::size_t sequences, int32_t max_tokens) {
  families_->sequences.Observe(static_cast<double>(sequences));
  families_->max_tokens.Observe(max_tokens);
}

void Metrics::finished(const Finish& finish, std::chrono::duration<double> since_received,
                       std::optional<std::chrono::duration<double>> since_first) {
  families_->finished[static_cast<std::size_t>(finish.reason)]->Increment();
  families_->request.Observe(since_received.count());
  families_->prompt_tokens.Observe(finish.prompt_tokens);
  families_->generation_tokens.Observe(finish.completion_tokens);
  families_->cache_queries.Increment(finish.prompt_tokens);
  families_->cache_hits.Increment(finish.cached_tokens);
  if (finish.queue_time) {
    families_->queue.Observe(finish.queue_time->count());
  }
  if (finish.prefill_time) {
    families_->prefill.Observe(finish.prefill_time->count());
  }
  if (since_first) {
    families_->decode.Observe(since_first->count());
  }
  if (since_first && finish.completion_tokens > 1) {
    families_->token.Observe(since_first->count() / (finish.completion_tokens - 1));
  }
}

void Metrics::rejected(const absl::Status& status) {
  families_->rejected.Add({{"code", absl::StatusCodeToString(status.code())}}).Increment();
}

void Metrics::tenant_finished(const std::string& tenant, const Finish& finish) {
  if (tenant.empty()) {
    return;
  }
  Families& f = *families_;
  f.of_tenant(f.tenant_requests, tenant).Increment();
  f.of_tenant(f.tenant_prompt_tokens, tenant).Increment(finish.prompt_tokens);
  f.of_tenant(f.tenant_cached_tokens, tenant).Increment(finish.cached_tokens);
  f.of_tenant(f.tenant_generation_tokens, tenant).Increment(finish.completion_tokens);
  if (finish.queue_time) {
    f.of_tenant(f.tenant_queue_seconds, tenant).Increment(finish.queue_time->count());
  }
}

void Metrics::tenant_refused(const std::string& tenant) {
  if (!tenant.empty()) {
    families_->of_tenant(families_->tenant_refusals, tenant).Increment();
  }
}

namespace {

void add_speculation(Snapshot& snapshot, const EngineStats& stats) {
  snapshot.counter("vllm:spec_decode_num_drafts_total", "Drafts of a sequence in a step",
                   stats.drafts);
  snapshot.counter("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens",
                   stats.drafted_tokens);
  snapshot.counter("vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens that were chosen",
                   stats.accepted_tokens);
  for (std::size_t i = 0; i < stats.accepted_at.size(); ++i) {
    snapshot.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                     "Drafted tokens that were chosen, by place in the draft", stats.accepted_at[i],
                     {{"position", std::to_string(i)}});
  }
}

}  // namespace

std::string Metrics::expose(const EngineStats& stats, const EngineOptions& options, int64_t memory,
                            std::span<const MemoryPart> parts) const {
  Snapshot snapshot(families_->common);
  snapshot.gauge("vllm:num_requests_running", "Requests in the running batch", stats.running);
  snapshot.gauge("vllm:num_requests_waiting", "Requests that wait for their turn", stats.waiting);
  snapshot.counter("vllm:num_preemptions_total", "Sequences that were preempted",
                   stats.preemptions);
  snapshot.counter("vllm:prompt_tokens_total", "Prompt tokens prefilled", stats.prompt_tokens);
  snapshot.counter("vllm:generation_tokens_total", "Tokens generated", stats.generated_tokens);
  add_speculation(snapshot, stats);
  snapshot.gauge("tessera:memory_bytes", "Anonymous memory of the process",
                 static_cast<double>(memory));
  for (const auto& [name, bytes] : parts) {
    snapshot.gauge("tessera:request_memory_bytes", "Memory that requests take, by part",
                   static_cast<double>(bytes), {{"part", name}});
  }
  snapshot.counter("tessera:steps_total", "Forward passes", stats.steps);
  snapshot.gauge("tessera:build_info", "The server's version, as labels", 1,
                 {{"version", TESSERA_VERSION}, {"commit", std::string(commit())}});
  add_cache(snapshot, stats, options);
  add_old_names(snapshot, families_->cache_queries.Value(), families_->cache_hits.Value());

  std::vector<prometheus::MetricFamily> families = snapshot.take();
  for (prometheus::MetricFamily& family : families_->registry.Collect()) {
    families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace tessera
