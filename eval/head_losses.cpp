#include "eval/head_losses.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/kv_presets.h"
#include "eval/run/evaluation.h"
#include "eval/score/item_scores.h"

namespace tessera {
namespace {

// Rows that are compared with one run of the reference. Each has a KV cache of its own.
constexpr int32_t kRowsAtOnce = 8;

// Returns: the preset under which `row` alone of `rows` drops tokens.
EvalPreset preset_of(int32_t row, int32_t rows, int32_t kv_heads) {
  KvPolicy policy;
  policy.keep = KeepBudget{.allocator = KvAllocator::retrieval,
                           .retrieval_share = 0.5f,
                           .amount = KvAmount::of_tokens(kProfiledTokens)};
  policy.sinks = kProfiledSinks;
  std::vector<HeadProfile> profiles(static_cast<size_t>(rows));
  profiles[static_cast<size_t>(row)].place = policy.budget().retrieval_share;
  return {absl::StrCat("layer ", row / kv_heads, ", KV head ", row % kv_heads), policy,
          std::move(profiles)};
}

// Adds the divergences of the subjects behind the reference to `losses`.
void add_divergences(const Task& task, const TaskResults& results, std::span<Ratio> losses) {
  for (size_t s = 0; s < losses.size(); ++s) {
    for (size_t item = 0; item < task.items.size(); ++item) {
      losses[s].add(divergence(task.items[item], results.results[s + 1][item], Phase::acted));
    }
  }
}

}  // namespace

int64_t tokens_to_measure(std::span<const Task> tasks, const ModelConfig& config) {
  const int32_t rows = config.layers * config.kv_heads;
  const int32_t runs = (rows - 1) / kRowsAtOnce + 1;
  int64_t tokens = 0;
  for (const Task& task : tasks) {
    tokens += tokens_to_run(task, static_cast<size_t>(rows + runs));
  }
  return tokens;
}

absl::StatusOr<HeadLosses> measure_head_losses(
    const ModelHost& host, const Tokenizer& tokenizer, std::span<const Task> tasks,
    const std::function<void(std::string_view, std::string_view, int64_t)>& on_progress,
    Journal& journal) {
  const ModelConfig& config = host.config();
  const int32_t rows = config.layers * config.kv_heads;
  EvaluationOptions evaluation;
  evaluation.vocab = config.vocab;
  evaluation.on_progress = on_progress;
  std::vector<Ratio> losses(static_cast<size_t>(rows));
  for (int32_t first = 0; first < rows; first += kRowsAtOnce) {
    const int32_t count = std::min(kRowsAtOnce, rows - first);
    std::vector<std::unique_ptr<Subject>> subjects;
    TESSERA_ASSIGN_OR_RETURN(
        subjects.emplace_back(),
        host.subject({std::string(kReferencePreset), kKvPresetF16.policy}, tokenizer));
    for (int32_t row = first; row < first + count; ++row) {
      TESSERA_ASSIGN_OR_RETURN(subjects.emplace_back(),
                               host.subject(preset_of(row, rows, config.kv_heads), tokenizer));
    }
    for (const Task& task : tasks) {
      TESSERA_ASSIGN_OR_RETURN(const TaskResults results,
                               evaluate(task, subjects, evaluation, journal));
      add_divergences(
          task, results,
          std::span(losses).subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
    }
  }
  HeadLosses out{
      .layers = config.layers, .kv_heads = config.kv_heads, .losses = {}, .measured = {}};
  for (const Ratio& loss : losses) {
    if (loss.of == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--profile: no token of these tasks comes after a row has dropped any; take "
                       "contexts of more than ",
                       kProfiledTokens, " tokens (--lengths)"));
    }
    out.losses.push_back(static_cast<float>(std::max(loss.value(), 0.0)));
  }
  return out;
}

}  // namespace tessera
