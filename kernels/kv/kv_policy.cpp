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
      with_rule(policy.rule(), [](auto rule) { return decltype(rule)::kNeedsScores; });
  if (policy.scorer == KvScorer::none && needs_scores) {
    return "scorer is none: the rule " + std::string(name_of(policy.rule())) + " works on scores";
  }
  if (policy.replays() && policy.score_pool != 1) {
    return "score_pool compares the tokens of a prompt: it must be 1 with the scorer " +
           std::string(name_of(policy.scorer));
  }
  return "";
}

std::string budget_error(const KvPolicy& policy) {
  const KeepBudget& budget = policy.budget();
  const KvAmount amount = budget.amount;
  if (amount.is_share() && !in_range(amount.share(), 1e-6f, 1)) {
    return outside("keep_share", amount.share(), "above 0 and at most 1");
  }
  if (amount.is_tokens() && amount.tokens() <= 0) {
    return outside("keep_tokens", amount.tokens(), "above 0");
  }
  if (amount.is_bytes() && amount.bytes() <= 0) {
    return outside("keep_bytes", static_cast<double>(amount.bytes()), "above 0");
  }
  if (!in_range(budget.high_share, 0, 1)) {
    return outside("high_share", budget.high_share, "between 0 and 1");
  }
  if (budget.allocator == KvAllocator::pages && policy.has_low_tier()) {
    return "allocator pages evicts whole pages of one format: low must be the same as high";
  }
  if (!in_range(budget.retrieval_share, 0, 1)) {
    return outside("retrieval_share", budget.retrieval_share, "between 0 and 1");
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
  if (!policy.allocates(KvAllocator::pages) || !policy.budget().amount.is_share()) {
    return "a scorer that replays keeps a share of the pages of each section: it needs the rule "
           "budget, the allocator pages, and keep_share";
  }
  return "";
}

std::string threshold_error(const KeepByThresholds& thresholds) {
  if (!in_range(thresholds.alpha_low, 0, 1e6f)) {
    return outside("alpha_low", thresholds.alpha_low, "0 or more, and at most 1000000");
  }
  if (!in_range(thresholds.alpha_high, thresholds.alpha_low, 1e6f)) {
    return outside("alpha_high", thresholds.alpha_high, "at least alpha_low, and at most 1000000");
  }
  return "";
}

std::string mass_error(const KeepMass& mass) {
  if (!in_range(mass.mass_keep, 0, 1)) {
    return outside("mass_keep", mass.mass_keep, "between 0 and 1");
  }
  if (!in_range(mass.mass_high, 0, mass.mass_keep)) {
    return outside("mass_high", mass.mass_high, "between 0 and mass_keep");
  }
  return "";
}

std::string read_error(const KeepAll& all) {
  if (all.newest < 0 || all.newest > kKvGroup) {
    return outside("newest", all.newest, "between 0 and 64");
  }
  if (!in_range(all.read_share, 1e-6f, 1)) {
    return outside("read_share", all.read_share, "above 0 and at most 1");
  }
  if (all.read_tokens < kMinReadTokens || all.read_tokens > kMaxReadTokens) {
    return outside("read_tokens", all.read_tokens, "between 256 and 16777216");
  }
  return "";
}

std::string rule_error(const KvPolicy& policy) {
  switch (policy.rule()) {
    case KvRule::keep_all:
      return read_error(policy.all());
    case KvRule::thresholds:
      return threshold_error(policy.thresholds());
    case KvRule::budget:
      return budget_error(policy);
    case KvRule::mass:
      return mass_error(policy.mass());
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
