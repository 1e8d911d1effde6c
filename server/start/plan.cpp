#include "server/start/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/status_macros.h"
#include "engine/engine.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_shape.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda_library.h"
#include "models/architectures/rope_config.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/model_config.h"
#include "models/config/shard.h"
#include "models/transformer.h"
#include "models/weights/weights.h"
#include "models/workspace.h"
#include "server/start/draft_source.h"
#include "server/start/kv_check.h"
#include "server/start/start_fit.h"
#include "server/start/start_memory.h"

namespace tessera {
namespace {

constexpr int32_t kMaxSequences = 1 << 16;  // more are not looked for
constexpr int32_t kCostUnit = 1024;         // tokens over which the cost of one is averaged

std::string in_mib(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// Parts of a plan that all KV presets have in common.
struct Planned {
  const Settings& settings;
  StartModel model;
  std::string formats;  // of the weights
  MachineMemory machine;
  StartSizes sizes;
  std::vector<FormatCheck> checks;  // those of earlier starts
};

// Returns: the checks, and for formats of the default ladder without one that they hold: a start
// that has measured them takes no more memory than the plan says.
std::vector<FormatCheck> assumed_checks(const Planned& planned, const EngineOptions& options) {
  std::vector<FormatCheck> checks = planned.checks;
  if (!planned.settings.kv_check || planned.settings.tensor_parallel > 1) return checks;
  for (const KvFormat format : default_ladder(options, planned.model.own, planned.model.backend)) {
    if (find_check(checks, format) == nullptr) checks.push_back({format, 0});
  }
  return checks;
}

// Returns: true if requests are in the same memory as weights and KV cache.
bool on_host(const Planned& planned) {
  return planned.settings.device == Device::cpu;
}

// Memory of a start, in bytes on each rank. Requests and swapped-out sequences count as 0 where the
// others are a device's memory.
struct Memory {
  StartBytes start;
  int64_t requests = 0;
  int64_t swap = 0;

  int64_t total() const {
    return start.model() + start.stores + requests + swap + start.kv.total_bytes();
  }
};

EngineOptions options_of(const Planned& planned, const KvPreset& preset, const StartSizes& sizes) {
  EngineOptions options = with_sizes(planned.settings.engine, sizes);
  options.kv = preset;
  options.format_checks = assumed_checks(planned, options);
  return options;
}

// Returns: the memory that a start with this preset and these sizes takes. kv_bytes 0: room for a
// whole context of each sequence.
absl::StatusOr<Memory> memory_of(const Planned& planned, const KvPreset& preset,
                                 const StartSizes& sizes) {
  Memory memory;
  TESSERA_ASSIGN_OR_RETURN(memory.start,
                           start_bytes(options_of(planned, preset, sizes), planned.model));
  memory.requests = on_host(planned) ? planned.machine.requests : 0;
  memory.swap = on_host(planned) ? memory.start.swap : 0;
  return memory;
}

// Returns: the sizes of `planned` with so many sequences of whole contexts.
StartSizes whole(const Planned& planned, int32_t sequences, int32_t context) {
  const int32_t step = planned.settings.max_step_tokens > 0 ? planned.settings.max_step_tokens
                                                            : EngineOptions().max_step_tokens;
  return {.context = context,
          .sequences = sequences,
          .step_tokens = std::max(step, sequences),
          .kv_bytes = 0};
}

// Returns: the whole contexts that fit into the pages at one time.
int64_t whole_contexts(const KvArenaShape& kv) {
  return std::min<int64_t>(kv.slots, kv.pages / context_pages(kv));
}

// Returns: the most sequences whose whole contexts fit into `bytes`; 0: none.
int32_t sequences_within(const Planned& planned, const KvPreset& preset, int64_t bytes) {
  const auto fits = [&](int32_t sequences) {
    const absl::StatusOr<Memory> memory =
        memory_of(planned, preset, whole(planned, sequences, planned.sizes.context));
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
  const StartSizes sizes =
      bytes == 0 ? planned.sizes
                 : whole(planned, std::max(1, sequences_within(planned, preset, bytes)),
                         planned.sizes.context);
  const absl::StatusOr<Memory> memory = memory_of(planned, preset, sizes);
  if (!memory.ok()) {
    return fmt::format("{:<20} {}\n", preset.name, std::string(memory.status().message()));
  }
  if (bytes != 0 && memory->total() > bytes) {
    return fmt::format("{:<20} none: one takes {} in all\n", preset.name, in_mib(memory->total()));
  }
  const KvArenaShape& kv = memory->start.kv;
  const int64_t context_bytes = context_pages(kv) * kv.cost_of_page() + kv.slot_bytes();
  return fmt::format("{:<20} {:>6} {:>14} {:>14} {:>14}{}\n", preset.name, whole_contexts(kv),
                     in_mib(context_bytes), in_mib(kv.total_bytes()), in_mib(memory->total()),
                     preset.policy.is_lossy() ? "  *" : "");
}

// Returns: lines with the cost of each size.
std::string print_costs(const Planned& planned, const KvPreset& preset, const StartSizes& sizes,
                        const Memory& memory) {
  const auto workspace = [&](const StartSizes& other) {
    const StepLimits limits = step_limits(options_of(planned, preset, other));
    return Workspace::bytes_for(planned.model.own, limits, TransformerOptions().max_logits_rows,
                                planned.model.backend);
  };
  StartSizes longer = sizes;
  longer.context += kCostUnit;
  StartSizes larger = sizes;
  larger.step_tokens += kCostUnit;
  const KvArenaShape& kv = memory.start.kv;
  const int64_t own = workspace(sizes);
  const int64_t of_tokens = kv.whole_rows() * kv.row_pages();
  const int64_t of_windows = context_pages(kv) - of_tokens;
  const std::string windows =
      kv.windowed_rows() == 0
          ? ""
          : fmt::format(" Layers with a window have at most {} bytes of pages of a sequence.",
                        of_windows * kv.cost_of_page());
  return fmt::format(
      "  Of the KV cache, each sequence has {} bytes of buffers and tables, and each token {} "
      "bytes of pages.{}\n"
      "  Of the workspace, each token of --context has {} bytes, and each of --max-step-tokens "
      "{}.\n",
      kv.slot_bytes(), of_tokens * kv.cost_of_page() / kv.context, windows,
      (workspace(longer) - own) / kCostUnit, (workspace(larger) - own) / kCostUnit);
}

absl::StatusOr<std::string> print_chosen(const Planned& planned, int64_t bytes) {
  const Settings& settings = planned.settings;
  const KvPreset& preset = settings.engine.kv;
  StartSizes sizes = planned.sizes;
  if (bytes != 0) {
    const int32_t sequences = sequences_within(planned, preset, bytes);
    sizes = whole(planned, std::max(1, sequences), sizes.context);
    if (sequences == 0) {
      TESSERA_ASSIGN_OR_RETURN(const Memory one, memory_of(planned, preset, sizes));
      return absl::InvalidArgumentError(fmt::format(
          "memory: {} bytes do not hold one sequence of {} tokens: {} bytes are needed, of which "
          "the weights take {} and requests {} at most (--request-memory, --http-max-body)",
          bytes, sizes.context, one.total(), one.start.weights, one.requests));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const Memory memory, memory_of(planned, preset, sizes));
  const std::string besides = on_host(planned) ? "" : " and in the host's memory besides";
  std::string text = fmt::format(
      "{} sequences of {} tokens in {} bytes{}:\n"
      "  weights {}: {} bytes\n"
      "  workspace: {} bytes\n"
      "  sampling: {} bytes\n"
      "{}"
      "  KV cache {}: {} bytes\n",
      whole_contexts(memory.start.kv), sizes.context, memory.total(),
      settings.tensor_parallel > 1 ? " on each rank" : "", planned.formats, memory.start.weights,
      memory.start.workspace, memory.start.sampling,
      memory.start.draft == 0 ? "" : fmt::format("  draft model: {} bytes\n", memory.start.draft),
      preset.name, memory.start.kv.total_bytes());
  if (memory.start.kv.token_scores) {
    fmt::format_to(std::back_inserter(text), "  swapped-out sequences, at most{}: {} bytes\n",
                   besides, memory.start.swap);
  }
  if (memory.start.stores > 0) {
    fmt::format_to(std::back_inserter(text), "  evicted prefixes, at most: {} bytes\n",
                   memory.start.stores);
  }
  fmt::format_to(std::back_inserter(text), "  requests, at most{}: {} bytes\n", besides,
                 planned.machine.requests);
  text += print_costs(planned, preset, sizes, memory);
  if (bytes != 0) {
    fmt::format_to(std::back_inserter(text),
                   "  start with: --max-sequences {} --max-step-tokens {} "
                   "--kv-memory {} --context {} --kv {}\n",
                   sizes.sequences, sizes.step_tokens, memory.start.kv.total_bytes(), sizes.context,
                   preset.name);
  }
  return text;
}

// Sets the sizes: those of a start on this machine, or the context of sequences in `bytes`.
absl::Status choose_sizes(int32_t model_context, int64_t bytes, Planned& planned) {
  const KvPreset& preset = planned.settings.engine.kv;
  const StartSizes wishes = wished_sizes(planned.settings);
  if (bytes == 0 || wishes.context > model_context) {
    const EngineOptions options = options_of(planned, preset, {.context = 1, .sequences = 1});
    TESSERA_ASSIGN_OR_RETURN(planned.sizes, fit_start(wishes, model_context, planned.machine,
                                                      cost_of(options, planned.model)));
    return absl::OkStatus();
  }
  planned.sizes.context = wishes.context;
  if (wishes.context == 0) {
    planned.sizes.context = longest_context_that(model_context, [&](int32_t context) {
      const absl::StatusOr<Memory> memory = memory_of(planned, preset, whole(planned, 1, context));
      return memory.ok() && memory->total() <= bytes;
    });
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> print_plan(const Settings& settings, int64_t memory) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(settings.model));
  TESSERA_RETURN_IF_ERROR(check_divides(config, settings.tensor_parallel));
  const CudaLibrary cuda = settings.device == Device::cuda ? open_cuda_library() : CudaLibrary{};
  const Backend& backend =
      cuda.backend != nullptr ? *cuda.backend : cpu_backend(settings.isa.value_or(best_cpu_isa()));
  TESSERA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(settings.model));
  TESSERA_ASSIGN_OR_RETURN(const WeightSize weights,
                           Weights::measure(config, {.rank = 0, .ranks = settings.tensor_parallel},
                                            checkpoint, settings.weights, backend));
  ThreadPool pool(settings.threads);
  const ModelConfig own = shard_config(config, settings.tensor_parallel);
  Planned planned{.settings = settings,
                  .model = {.own = own,
                            .weight_bytes = weights.bytes,
                            .backend = backend,
                            .stream = cuda.backend != nullptr ? cuda.stream : pool.stream()},
                  .formats = weights.formats,
                  .machine = machine_memory(settings, free_device_memory(cuda), nullptr),
                  .sizes = {},
                  .checks = known_checks(settings)};
  TESSERA_ASSIGN_OR_RETURN(const std::optional<DraftSource> draft,
                           DraftSource::open(settings, backend));
  if (draft.has_value()) draft->add_to(planned.model);
  planned.machine.free /= planned.machine.is_device ? 1 : settings.tensor_parallel;
  TESSERA_RETURN_IF_ERROR(choose_sizes(longest_context(config), memory, planned));
  TESSERA_ASSIGN_OR_RETURN(std::string text, print_chosen(planned, memory));
  if (!planned.checks.empty()) {
    fmt::format_to(std::back_inserter(text), "  nats from f16 on this checkpoint: {}\n",
                   describe(planned.checks));
  }
  fmt::format_to(std::back_inserter(text), "\n{:<20} {:>6} {:>14} {:>14} {:>14}\n", "--kv", "users",
                 "of one user", "KV cache", "in all");
  text += print_row(planned, settings.engine.kv, memory);
  for (const KvPreset& preset : kv_choices()) {
    if (preset.name != settings.engine.kv.name) {
      text += print_row(planned, preset, memory);
    }
  }
  text +=
      "* drops or demotes tokens when a prompt is complete; users are counted with whole prompts, "
      "so more may run\n";
  return text;
}

}  // namespace tessera
