#include "kernels/kv/kv_policy.h"

#include <cstddef>

#include "kernels/kv/kv_page.h"

namespace tessera {
namespace {

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
  if (policy.score_pool < 1 || policy.score_pool > kMaxScorePool) {
    return outside("score_pool", policy.score_pool, "between 1 and 63");
  }
  if (policy.score_pool % 2 == 0) {
    return outside("score_pool", policy.score_pool, "odd");
  }
  const bool needs_scores =
      with_rule(policy.rule, [](auto rule) { return decltype(rule)::kNeedsScores; });
  if (policy.scorer == KvScorer::none && needs_scores) {
    return "scorer is none: the rule " + std::string(name_of(policy.rule)) + " works on scores";
  }
  if (policy.replays() && policy.score_pool != 1) {
    return "score_pool compares the tokens of a prompt: it must be 1 with the scorer " +
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
  if (policy.allocator == KvAllocator::pages && policy.has_low_tier()) {
    return "allocator pages evicts whole pages of one format: low must be the same as high";
  }
  if (!in_range(policy.retrieval_share, 0, 1)) {
    return outside("retrieval_share", policy.retrieval_share, "between 0 and 1");
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
  constexpr std::string_view kNames[] = {"uniform", "pages", "retrieval"};
  return name_at(kNames, allocator);
}

std::string_view name_of(KvRule rule) {
#define TESSERA_RULE(name, Type) #name,
  constexpr std::string_view kNames[] = {TESSERA_KV_RULES(TESSERA_RULE)};
#undef TESSERA_RULE
  return name_at(kNames, rule);
}

}  // namespace tessera
