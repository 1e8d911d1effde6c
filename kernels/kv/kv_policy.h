#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/kv/kv_allocators.h"
#include "kernels/kv/kv_format.h"
#include "kernels/kv/kv_keep.h"
#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_rules.h"
#include "kernels/kv/kv_scorers.h"

namespace tessera {

// Policy: the treatment of a sequence's keys and values after they are stored, as plain data. It is
// its formats, a scorer, one rule with its numbers, and the tokens that no rule touches. Another
// scorer or rule is one small file and one line in the table of kv_scorers.h or kv_rules.h
// (docs/howto/add-a-policy.md).

// Ranks the channels of a key that is pruned on its way to a sparse low tier.
enum class KvKeyScore : uint8_t {
  magnitude,  // |k|
  // Ranks by |k| times the queries' weight on that channel. The weight is the sum of |q| over the
  // newest closed group and the open one, and over the query heads of the KV head.
  output_aware,
};

struct KvPolicy {
  KvFormat high = kKvF16;
  KvFormat low = kKvF16;  // the same as `high`: one tier, and a token is kept or dropped

  // ---- scorer. Only the last `score_window` queries of the prompt are scored (0: all of them).
  // The queries after the prompt are scored too if their tokens are evaluated (compress_generated).
  KvScorer scorer = KvScorer::none;
  int32_t score_window = 64;
  // Odd: the score of a prompt's token is the highest of so many tokens with it in their middle. A
  // rule then keeps neighbours together. 1: scores stay.
  int32_t score_pool = 1;
  KvKeyScore key_score = KvKeyScore::magnitude;
  // Tokens of a section, for scorers that replay. Sections are cut at fixed positions from the
  // first token on. Each is compressed by itself, once its last token is stored and the model has
  // repeated it.
  int32_t section = 512;

  KvKeep keep{};

  // ---- protected tokens: no rule touches them, and they stay in the high tier
  int32_t sinks = 4;   // first tokens
  int32_t recent = 1;  // closed groups of 64, besides the open one
  // True: tokens after the prompt are evaluated too, 64 at a time as they leave the recent groups.
  // False: all generated tokens stay.
  bool compress_generated = true;

  constexpr KvRule rule() const { return keep.rule(); }
  // Requires: the policy has that rule.
  constexpr const KeepByThresholds& thresholds() const { return keep.as<KeepByThresholds>(); }
  constexpr KeepByThresholds& thresholds() { return keep.as<KeepByThresholds>(); }
  constexpr const KeepBudget& budget() const { return keep.as<KeepBudget>(); }
  constexpr KeepBudget& budget() { return keep.as<KeepBudget>(); }
  constexpr const KeepMass& mass() const { return keep.as<KeepMass>(); }
  constexpr const KeepAll& all() const { return keep.as<KeepAll>(); }
  constexpr KeepAll& all() { return keep.as<KeepAll>(); }

  // Returns: true if the rule demotes or drops stored tokens. A quantised format alone is not
  // called lossy.
  constexpr bool is_lossy() const { return !keep.is<KeepAll>(); }
  constexpr bool has_low_tier() const { return is_lossy() && !(high == low); }
  constexpr int32_t newest_dense() const {
    return !is_lossy() && high.is_sparse() ? all().newest : 0;
  }
  // Returns: true if rows get budgets by that allocator.
  constexpr bool allocates(KvAllocator allocator) const {
    return keep.is<KeepBudget>() && budget().allocator == allocator;
  }
  // Returns: true if rows get budgets by a profile of the model.
  constexpr bool reads_profile() const { return allocates(KvAllocator::retrieval); }
  // Returns: true if generated tokens read selected tiles only.
  constexpr bool selects() const { return !is_lossy() && all().read_share < 1; }
  // Returns: SequenceSpan::read_tiles of a generated token that follows `context` stored tokens.
  constexpr int32_t read_tiles(int32_t context) const {
    if (!selects()) {
      return 0;
    }
    const int32_t stored = context / kAttentionTile;
    const double share = double{all().read_share} * stored;
    const auto whole = static_cast<int32_t>(share);
    const int32_t tiles = whole + (whole < share ? 1 : 0);
    const int32_t least = (all().read_tokens - 1) / kAttentionTile + 1;
    return tiles > least ? tiles : least;
  }
  // Returns: true if tokens after the prompt are computed one per step, after a recompute too. They
  // read other inputs than tokens of a prompt do.
  constexpr bool one_by_one() const { return newest_dense() > 0 || selects(); }
  // Returns: true if keys are pruned after they were stored, so that later queries can influence
  // it.
  constexpr bool prunes_keys() const { return has_low_tier() && low.key_keep < KvFormat::kKeepAll; }
  // Returns: true if the policy compresses section after section, each after its replay. The tokens
  // kept of a section then depend on the tokens up to its end alone, and can be shared.
  constexpr bool replays() const { return is_lossy() && tessera::replays(scorer); }
  // Returns: true if the policy compresses a sequence by scores of its own queries, whose
  // compressed tokens cannot be shared.
  constexpr bool is_private() const { return is_lossy() && !replays(); }
  // Returns: true if tokens need token scores: a position each, and a score if there is a scorer.
  constexpr bool needs_token_scores() const { return is_lossy(); }

  friend constexpr bool operator==(const KvPolicy&, const KvPolicy&) = default;
};

inline constexpr int32_t kMaxScorePool = 63;
inline constexpr int32_t kMaxScoreWindow = 1 << 20;
inline constexpr int32_t kMaxRecentGroups = 1 << 14;
inline constexpr int32_t kMinReadTokens = 256;  // the ends of two tiers
inline constexpr int32_t kMaxReadTokens = 1 << 24;
inline constexpr int32_t kMaxSection = 1 << 12;

// Returns: empty if `policy` is valid, else a message that names the field.
std::string policy_error(const KvPolicy& policy);

// Returns: bytes of one token's key and value in one KV head, with scales, zeros and bitmaps.
// Orders formats by precision.
double token_bytes(KvFormat format, int32_t head_dim);

// Returns: the name of a value; empty for one that the enum does not have.
std::string_view name_of(KvScorer scorer);
std::string_view name_of(KvKeyScore score);
std::string_view name_of(KvAllocator allocator);
std::string_view name_of(KvRule rule);

}  // namespace tessera
