#include "engine/kv/kv_presets.h"

#include <cstddef>

namespace tessera {
namespace {

// Tokens in f16, dropped by rank, as in the papers on pruning.
constexpr KvPolicy pruning(KvScorer scorer, float keep_share) {
  KvPolicy policy;
  policy.scorer = scorer;
  policy.keep = KeepBudget{.amount = KvAmount::of_share(keep_share)};
  return policy;
}

// The numbers were searched on the shipped model, for the fewest bytes at 1500 tokens without loss:
//   python3 eval/search_policy.py --model models/checkpoints/tessera-tiny --text novels.txt
//       --vary score_window=8,16 --vary score_pool=31,47 --vary alpha_low=0.3,0.5
//       --vary alpha_high=8,1000
// docs/measurements/2026-11-22-kv-quality.md has the results. The paper has no pooling. An answer
// attends to tokens one after the other, so the neighbours of an attended token are needed next.
// Thresholds are those of the paper's code, alpha / N. Its text compares cumulative significance at
// the prompt, and single tokens in Algorithm 1.
constexpr KvPolicy leankv() {
  KvPolicy policy;
  policy.high = kKvK8V4;
  policy.low = kKvK4V2;
  policy.scorer = KvScorer::mean;
  policy.score_window = 16;
  policy.score_pool = 31;
  policy.keep = KeepByThresholds{.alpha_high = 8, .alpha_low = 0.3f};
  return policy;
}

// MUSTAFAR: a prompt attends to itself unquantised. Tokens are pruned after the prompt, and later
// as they leave the recent groups. At least the newest kKvGroup tokens are therefore always
// unquantised (the paper: 32).
constexpr KvPolicy mustafar() {
  KvPolicy policy = pruning(KvScorer::none, 1.0f);
  policy.low = kKvS70;
  policy.budget().high_share = 0;
  policy.sinks = 0;
  return policy;
}

constexpr KvPolicy kv_compress() {
  KvPolicy policy = pruning(KvScorer::squares, 0.25f);
  policy.score_window = 8;
  policy.score_pool = 7;
  policy.budget().allocator = KvAllocator::pages;
  return policy;
}

constexpr KvPolicy snapkv() {
  KvPolicy policy = pruning(KvScorer::mean, 0.25f);
  policy.score_window = 32;
  policy.score_pool = 7;
  policy.compress_generated = false;
  return policy;
}

// Half of the heads keep everything, and the others the first 4 and the newest tokens, 256 in all.
// docs/measurements/2026-11-27-head-profiles.md has the choice.
constexpr KvPolicy retrieval_50() {
  KvPolicy policy;
  policy.high = kKvK8V4;
  policy.low = kKvK8V4;
  policy.keep = KeepBudget{.allocator = KvAllocator::retrieval,
                           .retrieval_share = 0.5f,
                           .amount = KvAmount::of_tokens(256)};
  return policy;
}

// The order of KVzip (2025): each section of the prompt is repeated, and its tokens are ranked by
// their part in that. The paper repeats the whole prompt and then drops single tokens; here each
// section is compressed before the next one is computed, and rows keep whole pages.
// docs/kv-prefix-compression.md explains why.
constexpr KvPolicy replay(float keep_share, KvFormat format) {
  KvPolicy policy = pruning(KvScorer::replay_output, keep_share);
  policy.high = format;
  policy.low = format;
  policy.score_window = 0;
  policy.budget().allocator = KvAllocator::pages;
  return policy;
}

// Quest (2024). The paper reads a number of tokens; here it is a share. It ranks pages of 16 tokens
// by bounds of their keys; here sketches rank attention tiles (kernels/kv/key_sketch.h).
constexpr KvPolicy quest() {
  KvPolicy policy;
  policy.high = kKvK8V4;
  policy.low = kKvK8V4;
  policy.keep = KeepAll{.read_share = 0.25f};
  return policy;
}

constexpr size_t kShownFormats = 3;

}  // namespace

std::span<const KvPreset> kv_choices() {
  static const KvPreset kChoices[] = {
      uniform_kv(kKvF16),
      uniform_kv(kKvK8V4),
      uniform_kv(kKvK4V2R),
      {"leankv", leankv()},
      {"mustafar-70", mustafar()},
      {"kv-compress", kv_compress()},
      {"snapkv", snapkv()},
      {"streaming", pruning(KvScorer::none, 0.25f)},
      {"retrieval-50", retrieval_50()},
      {"replay-50", replay(0.5f, kKvK8V4)},
      // 15 % of f16's bytes at 4,000 tokens.
      {"replay-31", replay(0.3125f, kKvK6V4R)},
      {"k8v4-quest", quest()},
  };
  return kChoices;
}

std::span<const KvPreset> kv_presets() {
  return kv_choices().subspan(kShownFormats);
}

std::optional<KvPreset> find_kv_preset(std::string_view name) {
  for (const KvPreset& preset : kv_presets()) {
    if (preset.name == name) {
      return preset;
    }
  }
  if (const std::optional<KvFormat> format = kv_format_named(name); format.has_value()) {
    return uniform_kv(*format);
  }
  return std::nullopt;
}

}  // namespace tessera
