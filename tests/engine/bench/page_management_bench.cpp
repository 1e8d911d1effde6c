// Measures the share of page management in a decode step: reserving pages, and compression by the
// policy of the tokens that a step stored. Shown beside it: the time of kv_store, which prunes and
// encodes a group when it closes. 64 sequences of the shipped model decode in one batch. Their
// lengths are staggered, so that one of them closes a group in each step.
//   page_management_bench MODEL_DIRECTORY [tokens before [steps [policy ...]]]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/ops/paper_leankv.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/transformer.h"

namespace tessera {
namespace {

constexpr int32_t kSequences = 64;
constexpr int32_t kChunk = 512;

double now() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <class T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

// Microseconds of one step, by part.
struct Times {
  double reserve = 0;
  double forward = 0;  // includes logits
  double store = 0;    // part of forward: kv_store
  double compress = 0;

  double share() const { return (reserve + compress) / (reserve + forward + compress); }
};

// The best backend, with a kv_store that measures its own time.
struct TimedStores {
  static inline double spent = 0;

  static Backend backend() {
    Backend timed = cpu_backend(best_cpu_isa());
    timed.kv_store = [](const KvStoreArgs& args, Stream stream) {
      const double begin = now();
      cpu_backend(best_cpu_isa()).kv_store(args, stream);
      spent += now() - begin;
    };
    return timed;
  }
};

class Batches {
 public:
  Batches(const std::string& model, const KvPolicy& policy, int32_t before, int32_t context)
      : backend_(TimedStores::backend()),
        transformer_(must(Transformer::load(model,
                                            {.weights = WeightFormat::bf16,
                                             .limits = {kChunk, kSequences, context},
                                             .max_logits_rows = kSequences},
                                            backend_, threads_.stream()))),
        kv_(must(KvCache::create({.preset = {"", policy},
                                  .layers = config().layers,
                                  .kv_heads = config().kv_heads,
                                  .head_dim = config().head_dim,
                                  .query_heads = config().heads,
                                  .slots = kSequences,
                                  .context = context},
                                 backend_, threads_.stream()))),
        logits_(static_cast<size_t>(int64_t{kSequences} * config().vocab)) {
    for (int32_t i = 0; i < kSequences; ++i) {
      lengths_.push_back(before + i);
      slots_.push_back(kv_->open_slot(policy, lengths_.back()));
      for (int32_t at = 0; at < lengths_.back(); at += kChunk) {
        step({{i, at, std::min(kChunk, lengths_.back() - at)}});
      }
    }
  }

  Times decode() {
    std::vector<Run> runs;
    for (int32_t i = 0; i < kSequences; ++i) {
      runs.push_back({i, lengths_[static_cast<size_t>(i)]++, 1});
    }
    return step(runs);
  }

  int threads() const { return threads_.threads(); }

 private:
  struct Run {
    int32_t sequence;
    int32_t context;
    int32_t count;
  };
  const ModelConfig& config() const { return transformer_->config(); }

  Times step(const std::vector<Run>& runs) {
    std::vector<int32_t> tokens;
    std::vector<int32_t> positions;
    std::vector<int32_t> last_rows;
    std::vector<SequenceSpan> spans;
    std::vector<KvScoring> scorings;
    std::vector<KvReservation> reservations;
    std::vector<const KvSlot*> slots;
    for (const Run& run : runs) {
      const KvSlot& slot = slots_[static_cast<size_t>(run.sequence)];
      spans.push_back({slot.index(), static_cast<int32_t>(tokens.size()), run.count, run.context,
                       kv_->tiers(slot)});
      scorings.push_back(kv_->scoring(slot));
      reservations.push_back({slot, run.context + run.count});
      slots.push_back(&slot);
      for (int32_t i = 0; i < run.count; ++i) {
        tokens.push_back(static_cast<int32_t>(random_() % static_cast<uint32_t>(config().vocab)));
        positions.push_back(run.context + i);
      }
      last_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    }
    if (!scorings[0].token_scores) {
      scorings.clear();
    }
    const double begin = now();
    kv_->reserve(reservations);
    const double reserved = now();
    TimedStores::spent = 0;
    transformer_->forward({tokens, positions, spans, scorings}, kv_->view(), threads_.stream());
    const auto rows = static_cast<int64_t>(last_rows.size());
    transformer_->logits(last_rows, {logits_.data(), rows, config().vocab, config().vocab},
                         threads_.stream());
    const double computed = now();
    kv_->compress(slots);
    return {reserved - begin, computed - reserved, TimedStores::spent, now() - computed};
  }

  ThreadPool threads_{0};
  const Backend backend_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvCache> kv_;
  std::vector<float> logits_;
  std::vector<KvSlot> slots_;
  std::vector<int32_t> lengths_;
  std::mt19937 random_{1};
};

constexpr const char* kAllDemoted = "all demoted";

// The worst case of compression: every token is demoted, none is dropped.
KvPolicy all_demoted() {
  KvPolicy policy = paper_leankv();
  policy.thresholds().alpha_high = 1e6f;
  return policy;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

void measure(const std::string& model, const std::string& name, KvPolicy policy, int32_t before,
             int32_t steps) {
  Batches batches(model, policy, before, before + kSequences + steps);
  std::vector<double> reserve;
  std::vector<double> forward;
  std::vector<double> store;
  std::vector<double> compress;
  std::vector<double> share;
  for (int32_t i = 0; i < steps; ++i) {
    const Times times = batches.decode();
    reserve.push_back(times.reserve);
    forward.push_back(times.forward);
    store.push_back(times.store);
    compress.push_back(times.compress);
    share.push_back(100 * times.share());
  }
  std::printf("| %s | %d | %d | %.0f | %.0f | %.0f | %.0f | %.2f %% |\n", name.c_str(), before,
              batches.threads(), median(forward), median(store), median(reserve), median(compress),
              median(share));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc < 2) {
    std::fprintf(stderr, "page_management_bench MODEL_DIRECTORY [tokens [steps [policy ...]]]\n");
    return 1;
  }
  const int32_t before = argc > 2 ? std::atoi(argv[2]) : 1024;
  const int32_t steps = argc > 3 ? std::atoi(argv[3]) : 128;
  std::vector<std::string> names(argv + std::min(argc, 4), argv + argc);
  if (names.empty()) {
    names = {"k8v4", "leankv", kAllDemoted, "kv-compress"};
  }
  std::printf(
      "| policy | tokens | threads | model us | of it, store us | reserve us | compress us | of a "
      "step |\n");
  std::printf("|---|--:|--:|--:|--:|--:|--:|--:|\n");
  for (const std::string& name : names) {
    const std::optional<KvPreset> preset = find_kv_preset(name == kAllDemoted ? "leankv" : name);
    if (!preset.has_value()) {
      std::fprintf(stderr, "there is no preset %s\n", name.c_str());
      return 1;
    }
    measure(argv[1], name, name == kAllDemoted ? all_demoted() : preset->policy, before, steps);
  }
  return 0;
}
