#include "kernels/kv/kv_policy.h"

#include <cmath>
#include <cstddef>

#include "kernels/kv/kv_page.h"

namespace tessera {
namespace {

// Tokens in f16, dropped by rank, as in the papers on pruning.
constexpr KvPolicy pruning(KvScorer scorer, float keep_share) {
  KvPolicy policy;
  policy.scorer = scorer;
  policy.rule = KvRule::budget;
  policy.keep_share = keep_share;
  return policy;
}

struct LeanKv {
  int32_t score_window = 0;
  int32_t score_pool = 0;
  float alpha_high = 0;
  float alpha_low = 0;
};

constexpr KvPolicy leankv(const LeanKv& numbers) {
  KvPolicy policy;
  policy.high = kKvK8V4;
  policy.low = kKvK4V2;
  policy.scorer = KvScorer::mean;
  policy.score_window = numbers.score_window;
  policy.score_pool = numbers.score_pool;
  policy.score_generated = true;
  policy.rule = KvRule::thresholds;
  policy.alpha_high = numbers.alpha_high;
  policy.alpha_low = numbers.alpha_low;
  return policy;
}

// MUSTAFAR: a prompt attends to itself unquantised. Tokens are pruned after the prompt, and later
// as they leave the recent groups. At least the newest kKvGroup tokens are therefore always
// unquantised (the paper: 32).
constexpr KvPolicy mustafar(KvFormat pruned) {
  KvPolicy policy = pruning(KvScorer::none, 1.0f);
  policy.low = pruned;
  policy.high_share = 0;
  policy.sinks = 0;
  return policy;
}

// The numbers of both presets were searched on the shipped model, for the fewest bytes at 1500
// tokens:
//   python3 eval/search_policy.py --model models/checkpoints/tessera-tiny --text novels.txt
//       --vary score_window=8,16 --vary score_pool=31,47 --vary alpha_low=0.3,0.5
//       --vary alpha_high=8,1000
// for `leankv`, which must be lossless. `leankv-aggressive` may lose 5 % of the answers to
// questions at the prompt's end. Its search adds --ahead and
//       --vary score_window=8 --vary score_pool=23,31 --vary alpha_low=3,6,12 --vary
//       alpha_high=1000
// docs/measurements/2026-11-22-kv-quality.md has the results. The paper has no pooling. An answer
// attends to tokens one after the other, so the neighbours of an attended token are needed next.
constexpr LeanKv kLossless{
    .score_window = 16, .score_pool = 31, .alpha_high = 8, .alpha_low = 0.3f};
constexpr LeanKv kNear{.score_window = 8, .score_pool = 23, .alpha_high = 1000, .alpha_low = 6};

constexpr KvPolicy h2o() {
  KvPolicy policy = pruning(KvScorer::sum, 0.25f);
  policy.score_window = 0;
  policy.score_generated = true;
  return policy;
}

constexpr KvPolicy kv_compress() {
  KvPolicy policy = pruning(KvScorer::squares, 0.25f);
  policy.score_window = 8;
  policy.score_pool = 7;
  policy.score_generated = true;
  policy.allocator = KvAllocator::pages;
  return policy;
}

constexpr KvPolicy snapkv(KvAllocator allocator) {
  KvPolicy policy = pruning(KvScorer::mean, 0.25f);
  policy.score_window = 32;
  policy.score_pool = 7;
  policy.allocator = allocator;
  policy.compress_generated = false;
  return policy;
}

// Scissorhands counts over the last 400 queries and protects the last 10 tokens; here they are 64
// or more. It keeps a number of tokens for each layer, chosen by that layer's persistence; here the
// budget is the same for every layer, or what `allocator` says.
constexpr KvPolicy scissorhands() {
  KvPolicy policy = pruning(KvScorer::scissorhands, 0.5f);
  policy.score_window = 400;
  policy.score_generated = true;
  policy.sinks = 0;
  return policy;
}

// A2SF prunes every step and has no window; here tokens are evaluated 64 at a time.
constexpr KvPolicy a2sf() {
  KvPolicy policy = h2o();
  policy.scorer = KvScorer::a2sf;
  policy.sinks = 0;
  return policy;
}

// Keyformer prunes every step; here tokens are evaluated 64 at a time, and the newest 64 to 127 are
// its recent window. It keeps half of the prompt's length (its abstract), and its sums are not
// divided by the number of queries.
constexpr KvPolicy keyformer() {
  KvPolicy policy = h2o();
  policy.scorer = KvScorer::keyformer;
  policy.keep_share = 0.5f;
  policy.sinks = 0;
  return policy;
}

// ZigZagKV is SnapKV with budgets by layer and head (its section 4).
constexpr KvPolicy zigzagkv() {
  return snapkv(KvAllocator::zigzag);
}

// LazyEviction keeps half of the tokens on reasoning tasks (its abstract). The window of 128 tokens
// between evictions and the newest 128 tokens are ours.
constexpr KvPolicy lazyeviction() {
  KvPolicy policy = pruning(KvScorer::recurrence, 0.5f);
  policy.score_window = 128;
  policy.score_generated = true;
  policy.rule = KvRule::lagged;
  policy.lag = 2;
  policy.recent = 2;
  return policy;
}

// KVzip (2025) in 8 and 4 bits. The paper replays the whole prompt, in parts, and then drops single
// tokens; here each section is replayed and compressed before the next one is computed, and rows
// keep whole pages. docs/kv-prefix-compression.md explains why. The presets replay-50, replay-37
// and replay-25 differ in the scorer alone.
constexpr KvPolicy kvzip(float keep_share, KvScorer scorer) {
  KvPolicy policy = pruning(scorer, keep_share);
  policy.high = kKvK8V4;
  policy.low = kKvK8V4;
  policy.score_window = 0;
  policy.score_generated = true;
  policy.allocator = KvAllocator::pages;
  return policy;
}

// Five sixteenths of the tokens in fewer bytes: 15 % of f16's at 4,000 tokens.
constexpr KvPolicy replay_31() {
  KvPolicy policy = kvzip(0.3125f, KvScorer::replay_output);
  policy.high = kKvK6V4R;
  policy.low = kKvK6V4R;
  return policy;
}

// Quest (2024). The paper reads a number of tokens; here it is a share. A page of 16 tokens has
// bounds there, a page of any size here.
constexpr KvPolicy quest() {
  KvPolicy policy;
  policy.high = kKvK8V4;
  policy.low = kKvK8V4;
  policy.read_share = 0.25f;
  return policy;
}

bool in_range(float value, float low, float high) {
  return value >= low && value <= high;  // false for NaN
}

std::string outside(std::string_view field, double value, std::string_view allowed) {
  return std::string(field) + " is " + std::to_string(value) + ", it must be " +
         std::string(allowed);
}

std::string format_error(const KvPolicy& policy) {
  if (policy.is_lossy() && (policy.high == kKvF32 || policy.low == kKvF32)) {
    return "f32 is kept whole: no rule works on it";
  }
  if (!is_supported(policy.high) || !is_supported(policy.low)) {
    const bool low = is_supported(policy.high);
    const KvFormat format = low ? policy.low : policy.high;
    const std::string sparse = ", keeps " + std::to_string(format.key_keep) + " and " +
                               std::to_string(format.value_keep) + " of 1000 channels";
    return std::string(low ? "low" : "high") + " has " + std::to_string(format.key_bits) +
           " key and " + std::to_string(format.value_bits) + " value bits" +
           (format.is_sparse() ? sparse : "") + ", a format without kernels";
  }
  if (policy.high == policy.low) {
    return "";
  }
  if (!policy.is_lossy()) {
    return "low differs from high, but no rule moves tokens there";
  }
  if (policy.low.key_bits > policy.high.key_bits ||
      policy.low.value_bits > policy.high.value_bits) {
    return "low is more precise than high";
  }
  if (policy.low.key_keep > policy.high.key_keep ||
      policy.low.value_keep > policy.high.value_keep) {
    return "low keeps more channels than high";
  }
  return "";
}

std::string key_score_error(const KvPolicy& policy) {
  if (policy.key_score == KvKeyScore::output_aware && !policy.prunes_keys()) {
    return "key_score output_aware prunes keys when they go to a sparse low tier: low must keep "
           "fewer channels of keys, and differ from high";
  }
  return "";
}

std::string scorer_error(const KvPolicy& policy) {
  if (policy.score_window < 0 || policy.score_window > kMaxScoreWindow) {
    return outside("score_window", policy.score_window, "between 0 (all queries) and 1048576");
  }
  if (policy.score_pool < 1 || policy.score_pool > kMaxScorePool || policy.score_pool % 2 == 0) {
    return outside("score_pool", policy.score_pool, "odd and between 1 and 63");
  }
  if (!in_range(policy.score_decay, 1e-6f, 1)) {
    return outside("score_decay", policy.score_decay, "above 0 and at most 1");
  }
  const bool needs_scores =
      with_rule(policy.rule, [](auto rule) { return decltype(rule)::kNeedsScores; });
  if (policy.scorer == KvScorer::none && needs_scores) {
    return "scorer is none: the rule " + std::string(name_of(policy.rule)) + " works on scores";
  }
  const bool has_state =
      with_scorer(policy.scorer, [](auto scorer) { return decltype(scorer)::kHasState; });
  if (has_state && !divides_budget(policy.rule)) {
    return "scorer " + std::string(name_of(policy.scorer)) +
           " ranks tokens: it needs a rule that divides a budget";
  }
  if (has_state && policy.score_pool != 1) {
    return "score_pool takes the maximum of sums: it must be 1 with the scorer " +
           std::string(name_of(policy.scorer));
  }
  if (policy.scorer != KvScorer::none && policy.compress_generated && !policy.score_generated) {
    return "compress_generated needs score_generated: generated tokens have no scores otherwise";
  }
  return "";
}

std::string budget_error(const KvPolicy& policy) {
  const int given = (policy.keep_share != 0 ? 1 : 0) + (policy.keep_tokens != 0 ? 1 : 0) +
                    (policy.keep_bytes != 0 ? 1 : 0);
  if (given != 1) {
    return "a budget is one of keep_share, keep_tokens and keep_bytes";
  }
  if (policy.keep_share != 0 && !in_range(policy.keep_share, 1e-6f, 1)) {
    return outside("keep_share", policy.keep_share, "above 0 and at most 1");
  }
  if (policy.keep_tokens < 0) {
    return outside("keep_tokens", policy.keep_tokens, "above 0");
  }
  if (policy.keep_bytes < 0) {
    return outside("keep_bytes", static_cast<double>(policy.keep_bytes), "above 0");
  }
  if (!in_range(policy.high_share, 0, 1)) {
    return outside("high_share", policy.high_share, "between 0 and 1");
  }
  if (reads_of(policy.allocator) == AllocatorReads::pages && policy.has_low_tier()) {
    return "allocator pages evicts whole pages of one format: low must be the same as high";
  }
  if (!(policy.pyramid_steepness > 1) || !std::isfinite(policy.pyramid_steepness)) {
    return outside("pyramid_steepness", policy.pyramid_steepness, "above 1");
  }
  if (!in_range(policy.head_floor, 0, 1)) {
    return outside("head_floor", policy.head_floor, "between 0 and 1");
  }
  return "";
}

std::string section_error(const KvPolicy& policy) {
  if (!policy.replays()) {
    return "";
  }
  if (policy.section < kKvGroup || policy.section > kMaxSection || policy.section % kKvGroup != 0) {
    return outside("section", policy.section, "a multiple of 64 between 64 and 4096");
  }
  if (policy.sinks != KvPolicy().sinks) {
    return outside("sinks", policy.sinks, "4 with a scorer that replays");
  }
  if (policy.rule != KvRule::budget || policy.allocator != KvAllocator::pages ||
      policy.keep_share == 0) {
    return "a scorer that replays keeps a share of the pages of each section: it needs the rule "
           "budget, the allocator pages, and keep_share";
  }
  return "";
}

std::string rule_error(const KvPolicy& policy) {
  if (!divides_budget(policy.rule) && policy.allocator != KvAllocator::uniform) {
    return "allocator spreads a budget: it needs the rule budget";
  }
  switch (policy.rule) {
    case KvRule::keep_all:
      return "";
    case KvRule::thresholds:
      if (!in_range(policy.alpha_low, 0, 1e6f)) {
        return outside("alpha_low", policy.alpha_low, "0 or more, and at most 1000000");
      }
      if (!in_range(policy.alpha_high, policy.alpha_low, 1e6f)) {
        return outside("alpha_high", policy.alpha_high, "at least alpha_low, and at most 1000000");
      }
      return "";
    case KvRule::budget:
      return budget_error(policy);
    case KvRule::lagged:
      if (policy.lag < 1 || policy.lag > kMaxRecentGroups) {
        return outside("lag", policy.lag, "between 1 and 16384 (groups of 64 tokens)");
      }
      return budget_error(policy);
    case KvRule::mass:
      if (!in_range(policy.mass_keep, 0, 1)) {
        return outside("mass_keep", policy.mass_keep, "between 0 and 1");
      }
      if (!in_range(policy.mass_high, 0, policy.mass_keep)) {
        return outside("mass_high", policy.mass_high, "between 0 and mass_keep");
      }
      return "";
  }
  return "rule is unknown";
}

std::string read_error(const KvPolicy& policy) {
  if (!in_range(policy.read_share, 1e-6f, 1)) {
    return outside("read_share", policy.read_share, "above 0 and at most 1");
  }
  if (policy.read_tokens < kMinReadTokens || policy.read_tokens > kMaxReadTokens) {
    return outside("read_tokens", policy.read_tokens, "between 256 and 16777216");
  }
  if (policy.selects() && policy.is_lossy()) {
    return "read_share below 1 does not go with the rule " + std::string(name_of(policy.rule)) +
           ": tokens that are not read have no scores";
  }
  return "";
}

}  // namespace

std::string policy_error(const KvPolicy& policy) {
  if (std::string error = format_error(policy); !error.empty()) {
    return error;
  }
  if (std::string error = key_score_error(policy); !error.empty()) {
    return error;
  }
  if (policy.newest < 0 || policy.newest > kKvGroup) {
    return outside("newest", policy.newest, "between 0 and 64");
  }
  if (std::string error = read_error(policy); !error.empty()) {
    return error;
  }
  if (!policy.is_lossy()) {
    return rule_error(policy);
  }
  if (std::string error = scorer_error(policy); !error.empty()) {
    return error;
  }
  if (policy.sinks < 0 || policy.sinks > kMaxScoreWindow) {
    return outside("sinks", policy.sinks, "between 0 and 1048576");
  }
  if (policy.recent < 1 || policy.recent > kMaxRecentGroups) {
    return outside("recent", policy.recent, "between 1 and 16384 (groups of 64 tokens)");
  }
  if (std::string error = section_error(policy); !error.empty()) {
    return error;
  }
  return rule_error(policy);
}

double token_bytes(KvFormat format, int32_t head_dim) {
  const KvPageLayout tile = KvPageLayout::make(format, head_dim, KvPageLayout::kKeyTile);
  return static_cast<double>(tile.tile_bytes()) / KvPageLayout::kKeyTile;
}

namespace {

// Returns: the name at an enum value's place; empty beyond the names.
template <class Enum, size_t kCount>
std::string_view name_at(const std::string_view (&names)[kCount], Enum value) {
  const auto place = static_cast<size_t>(value);
  return place < kCount ? names[place] : std::string_view();
}

}  // namespace

std::string_view name_of(KvScorer scorer) {
#define TESSERA_SCORER(name, Type) #name,
  constexpr std::string_view kNames[] = {TESSERA_KV_SCORERS(TESSERA_SCORER)};
#undef TESSERA_SCORER
  return name_at(kNames, scorer);
}

std::string_view name_of(KvKeyScore score) {
  constexpr std::string_view kNames[] = {"magnitude", "output_aware"};
  return name_at(kNames, score);
}

std::string_view name_of(KvAllocator allocator) {
#define TESSERA_ALLOCATOR(name, Type) #name,
  constexpr std::string_view kNames[] = {TESSERA_KV_ALLOCATORS(TESSERA_ALLOCATOR)};
#undef TESSERA_ALLOCATOR
  return name_at(kNames, allocator);
}

std::string_view name_of(KvRule rule) {
#define TESSERA_RULE(name, Type) #name,
  constexpr std::string_view kNames[] = {TESSERA_KV_RULES(TESSERA_RULE)};
#undef TESSERA_RULE
  return name_at(kNames, rule);
}

std::span<const KvPreset> kv_presets() {
  static const KvPreset kPresets[] = {
      uniform_kv(kKvF32),
      uniform_kv(kKvF16),
      uniform_kv(kKvFp8),
      uniform_kv(kKvK8V8),
      uniform_kv(kKvK8V4),
      uniform_kv(kKvK8V2),
      uniform_kv(kKvK4V4),
      uniform_kv(kKvK4V2),
      uniform_kv(kKvK6V4R),
      uniform_kv(kKvK4V4R),
      uniform_kv(kKvK4V2R),
      uniform_kv(kKvK4V3R),
      uniform_kv(kKvK3V3R),
      uniform_kv(kKvK3V2R),
      uniform_kv(kKvS50),
      uniform_kv(kKvS70),
      uniform_kv(kKvS50K8V8),
      uniform_kv(kKvS50K8V4),
      uniform_kv(kKvS50K4V4),
      uniform_kv(kKvS70K8V8),
      uniform_kv(kKvS70K8V4),
      uniform_kv(kKvS70K4V4),
      {"leankv", leankv(kLossless)},
      {"leankv-aggressive", leankv(kNear)},
      {"mustafar-50", mustafar(kKvS50)},
      {"mustafar-70", mustafar(kKvS70)},
      {"h2o", h2o()},
      {"kv-compress", kv_compress()},
      {"snapkv", snapkv(KvAllocator::uniform)},
      {"pyramidkv", snapkv(KvAllocator::pyramid)},
      {"adakv", snapkv(KvAllocator::heads)},
      {"scissorhands", scissorhands()},
      {"a2sf", a2sf()},
      {"keyformer", keyformer()},
      {"zigzagkv", zigzagkv()},
      {"lazyeviction", lazyeviction()},
      {"kvzip-50", kvzip(0.5f, KvScorer::replay)},
      {"kvzip-25", kvzip(0.25f, KvScorer::replay)},
      {"replay-50", kvzip(0.5f, KvScorer::replay_output)},
      {"replay-37", kvzip(0.375f, KvScorer::replay_output)},
      {"replay-31", replay_31()},
      {"replay-25", kvzip(0.25f, KvScorer::replay_output)},
      {"k8v4-quest", quest()},
      {"streaming", pruning(KvScorer::none, 0.25f)},
  };
  return kPresets;
}

const KvPreset* find_kv_preset(std::string_view name) {
  for (const KvPreset& preset : kv_presets()) {
    if (preset.name == name) {
      return &preset;
    }
  }
  return nullptr;
}

}  // namespace tessera
