#include "server/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"
#include "engine/kv/kv_shape.h"
#include "engine/kv/swap_room.h"
#include "engine/sampler.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda_library.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "models/rope_config.h"
#include "models/shard.h"
#include "models/status_macros.h"
#include "models/transformer.h"
#include "models/weights.h"
#include "models/workspace.h"
#include "server/kv_check.h"
#include "server/request_memory.h"

namespace tessera {
namespace {

constexpr int32_t kMaxSequences = 1 << 16;  // more are not looked for

std::string in_mib(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// Parts of a plan that all KV presets have in common.
struct Planned {
  const Settings& settings;
  const Backend& backend;
  Stream stream;
  ModelConfig own;     // of one rank
  WeightSize weights;  // on each rank
  int32_t context;
  int64_t requests;                 // of the rank that serves, at most
  std::vector<FormatCheck> checks;  // those of earlier starts
};

// Returns: the checks, and for formats of the default ladder without one that they hold: a start
// that has measured them takes no more memory than the plan says.
std::vector<FormatCheck> assumed_checks(const Planned& planned, const EngineOptions& options) {
  std::vector<FormatCheck> checks = planned.checks;
  if (!planned.settings.kv_check || planned.settings.tensor_parallel > 1) return checks;
  for (const KvFormat format : default_ladder(options, planned.own, planned.backend)) {
    if (find_check(checks, format) == nullptr) checks.push_back({format, 0});
  }
  return checks;
}

// Returns: true if requests are in the same memory as weights and KV cache.
bool on_host(const Planned& planned) {
  return planned.settings.device == Device::cpu;
}

// Memory of a start, in bytes on each rank.
struct Memory {
  int64_t weights = 0;
  int64_t workspace = 0;
  int64_t sampling = 0;
  int64_t requests = 0;  // 0 where the others are a device's memory, like the next
  int64_t swap = 0;
  KvArenaShape kv;

  int64_t total() const {
    return weights + workspace + sampling + requests + swap + kv.total_bytes();
  }
};

// Returns: the memory that a start with this preset takes for so many sequences. `kv_bytes` 0: room
// for a whole context of each.
absl::StatusOr<Memory> memory_of(const Planned& planned, const KvPreset& preset, int32_t sequences,
                                 int64_t kv_bytes) {
  EngineOptions options = planned.settings.engine;
  options.context = planned.context;
  options.kv = preset;
  options.max_sequences = sequences;
  options.kv_bytes = kv_bytes;
  options.format_checks = assumed_checks(planned, options);
  StepLimits limits = step_limits(options);
  limits.tokens = std::max(limits.tokens, sequences);
  const int32_t rows = TransformerOptions().max_logits_rows;
  const KvCacheOptions cache = kv_cache_options(options, planned.own, planned.backend);
  TESSERA_RETURN_IF_ERROR(check_options(cache));
  Memory memory{
      .weights = planned.weights.bytes,
      .workspace = Workspace::bytes_for(planned.own, limits, rows, planned.backend),
      .sampling = Sampler::bytes_for(planned.own.vocab, rows, planned.backend, planned.stream),
      .requests = on_host(planned) ? planned.requests : 0,
      .swap = 0,
      .kv = {}};
  TESSERA_ASSIGN_OR_RETURN(memory.kv, shape_of(cache));
  memory.swap = on_host(planned) ? swap_room_bytes(memory.kv) : 0;
  return memory;
}

// Returns: the whole contexts that fit into the pages at one time.
int64_t whole_contexts(const KvArenaShape& kv) {
  const int64_t pages = kv.slot_rows() * (kv.row_pages() + (kv.token_scores ? 2 : 0));
  return std::min<int64_t>(kv.slots, kv.pages / pages);
}

// Returns: the most sequences whose whole contexts fit into `bytes`; 0: none.
int32_t sequences_within(const Planned& planned, const KvPreset& preset, int64_t bytes) {
  const auto fits = [&](int32_t sequences) {
    const absl::StatusOr<Memory> memory = memory_of(planned, preset, sequences, 0);
    return memory.ok() && memory->total() <= bytes;
  };
  int32_t fitting = 0;
  for (int32_t step = kMaxSequences; step > 0; step /= 2) {
    if (fitting + step <= kMaxSequences && fits(fitting + step)) {
      fitting += step;
    }
  }
  return fitting;
}

// Returns: the line of one preset.
std::string print_row(const Planned& planned, const KvPreset& preset, int64_t bytes) {
  const int32_t sequences = bytes == 0 ? planned.settings.engine.max_sequences
                                       : std::max(1, sequences_within(planned, preset, bytes));
  const absl::StatusOr<Memory> memory =
      memory_of(planned, preset, sequences, bytes == 0 ? planned.settings.engine.kv_bytes : 0);
  if (!memory.ok()) {
    return fmt::format("{:<20} {}\n", preset.name, std::string(memory.status().message()));
  }
  if (bytes != 0 && memory->total() > bytes) {
    return fmt::format("{:<20} none: one takes {} in all\n", preset.name, in_mib(memory->total()));
  }
  const KvArenaShape& kv = memory->kv;
  const int64_t context_bytes =
      kv.slot_rows() * kv.row_pages() * kv.cost_of_page() + kv.slot_bytes();
  return fmt::format("{:<20} {:>6} {:>14} {:>14} {:>14}{}\n", preset.name, whole_contexts(kv),
                     in_mib(context_bytes), in_mib(kv.total_bytes()), in_mib(memory->total()),
                     preset.policy.is_lossy() ? "  *" : "");
}

absl::StatusOr<std::string> print_chosen(const Planned& planned, int64_t bytes) {
  const Settings& settings = planned.settings;
  const KvPreset& preset = settings.engine.kv;
  int32_t sequences = settings.engine.max_sequences;
  if (bytes != 0) {
    sequences = sequences_within(planned, preset, bytes);
    if (sequences == 0) {
      TESSERA_ASSIGN_OR_RETURN(const Memory one, memory_of(planned, preset, 1, 0));
      return absl::InvalidArgumentError(absl::StrCat(
          "memory: ", bytes, " bytes do not hold one sequence of ", planned.context,
          " tokens: ", one.total(), " bytes are needed, of which the weights take ", one.weights,
          " and requests ", one.requests, " at most (--request-memory, --http-max-body)"));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Memory memory,
      memory_of(planned, preset, sequences, bytes == 0 ? settings.engine.kv_bytes : 0));
  std::string text = fmt::format(
      "{} sequences of {} tokens in {} bytes{}:\n"
      "  weights {}: {} bytes\n"
      "  workspace: {} bytes\n"
      "  sampling: {} bytes\n"
      "  KV cache {}: {} bytes\n",
      whole_contexts(memory.kv), planned.context, memory.total(),
      settings.tensor_parallel > 1 ? " on each rank" : "", planned.weights.formats, memory.weights,
      memory.workspace, memory.sampling, preset.name, memory.kv.total_bytes());
  if (memory.kv.token_scores) {
    absl::StrAppend(&text, fmt::format("  swapped-out sequences, at most{}: {} bytes\n",
                                       on_host(planned) ? "" : " and in the host's memory besides",
                                       swap_room_bytes(memory.kv)));
  }
  absl::StrAppend(&text, fmt::format("  requests, at most{}: {} bytes\n",
                                     on_host(planned) ? "" : " and in the host's memory besides",
                                     planned.requests));
  if (bytes != 0) {
    absl::StrAppend(&text,
                    fmt::format("  start with: --max-sequences {} --max-step-tokens {} "
                                "--kv-memory {} --context {} --kv {}\n",
                                sequences, std::max(settings.engine.max_step_tokens, sequences),
                                memory.kv.total_bytes(), planned.context, preset.name));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> print_plan(const Settings& settings, int64_t memory) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig whole, read_model_config(settings.model));
  TESSERA_RETURN_IF_ERROR(check_divides(whole, settings.tensor_parallel));
  TESSERA_ASSIGN_OR_RETURN(const int32_t context, engine_context(settings, longest_context(whole)));
  const CudaLibrary cuda = settings.device == Device::cuda ? open_cuda_library() : CudaLibrary{};
  const Backend& backend =
      cuda.backend != nullptr ? *cuda.backend : cpu_backend(settings.isa.value_or(best_cpu_isa()));
  TESSERA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(settings.model));
  TESSERA_ASSIGN_OR_RETURN(const WeightSize weights,
                           Weights::measure(whole, {.rank = 0, .ranks = settings.tensor_parallel},
                                            checkpoint, settings.weights, backend));
  ThreadPool pool(settings.threads);
  const Planned planned{.settings = settings,
                        .backend = backend,
                        .stream = cuda.backend != nullptr ? cuda.stream : pool.stream(),
                        .own = shard_config(whole, settings.tensor_parallel),
                        .weights = weights,
                        .context = context,
                        .requests = static_cast<int64_t>(
                            request_memory_of(settings, settings.http.max_connections).total()),
                        .checks = known_checks(settings)};
  TESSERA_ASSIGN_OR_RETURN(std::string text, print_chosen(planned, memory));
  if (!planned.checks.empty()) {
    absl::StrAppend(&text, "  nats from f16 on this checkpoint: ", describe(planned.checks), "\n");
  }
  absl::StrAppend(&text, fmt::format("\n{:<20} {:>6} {:>14} {:>14} {:>14}\n", "--kv", "users",
                                     "of one user", "KV cache", "in all"));
  absl::StrAppend(&text, print_row(planned, settings.engine.kv, memory));
  for (const KvPreset& preset : kv_presets()) {
    if (preset.name != settings.engine.kv.name) {
      absl::StrAppend(&text, print_row(planned, preset, memory));
    }
  }
  absl::StrAppend(&text,
                  "* drops or demotes tokens when a prompt is complete; users are counted with "
                  "whole prompts, so more may run\n");
  return text;
}

}  // namespace tessera
