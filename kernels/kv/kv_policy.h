#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/kv/kv_allocators.h"
#include "kernels/kv/kv_format.h"
#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_rules.h"
#include "kernels/kv/kv_scorers.h"

namespace tessera {

// Policy: the treatment of a sequence's keys and values after they are stored. It is scorer x
// allocator x rule, as plain data. Another scorer or rule is one small file and one line in the
// table of kv_scorers.h or kv_rules.h (docs/howto/add-a-policy.md).
//
// Papers: LeanKV "Unifying KV Cache Compression for Large Language Models with LeanKV" (2024);
// KV-Compress "Paged KV-Cache Compression with Variable Compression Rates per Attention Head"
// (2024); SnapKV and StreamingLLM as described by these two.

// Ranks the channels of a key that is pruned on its way to a sparse low tier.
enum class KvKeyScore : uint8_t {
  magnitude,  // |k|
  // Ranks by |k| times the queries' weight on that channel (MUSTAFAR, section 2.1, figure 3: 32
  // queries). The weight is the sum of |q| over the newest closed group and the open one, and over
  // the query heads of the KV head.
  output_aware,
};

struct KvPolicy {
  KvFormat high = kKvF16;
  KvFormat low = kKvF16;  // the same as `high`: one tier, and a token is kept or dropped

  // For a sparse `high` without a rule: number of newest tokens, itself included, that a generated
  // token at least reads unquantised (MUSTAFAR, section 3: 32). It always reads its own group
  // unquantised. At most kKvGroup, which the residual buffer holds; 0: only its own group.
  int32_t newest = 32;

  // ---- scorer. Only the last `score_window` queries of the prompt are scored (0: all of them).
  // With score_generated, the queries after the prompt are scored too (KV-Compress, equation 20).
  KvScorer scorer = KvScorer::none;
  int32_t score_window = 64;  // queries: LeanKV 64 (its code), SnapKV 32, KV-Compress 8
  // Odd: the score of a prompt's token is the highest of so many tokens with it in their middle
  // (SnapKV; KV-Compress, equation 8: 7). A rule then keeps neighbours together. 1: scores stay.
  int32_t score_pool = 1;
  bool score_generated = false;
  KvKeyScore key_score = KvKeyScore::magnitude;
  // Tokens of a section, for scorers that replay. Sections are cut at fixed positions from the
  // first token on. Each is compressed by itself, once its last token is stored and the model has
  // repeated it.
  int32_t section = 512;

  // ---- allocator, with rules that divide a budget (KvBudget is not this, but pages for planning)
  KvAllocator allocator = KvAllocator::uniform;
  // [0, 1]: with the allocator `retrieval`, share of the rows that keep all tokens. The budget is
  // that of each other row.
  float retrieval_share = 0.5f;

  // ---- rule
  KvRule rule = KvRule::keep_all;
  // thresholds: a token is high from alpha_high / N on, and low from alpha_low / N on. N is the
  // number of stored tokens.
  float alpha_high = 1;
  float alpha_low = 0;
  // budget: exactly one of keep_share, keep_tokens and keep_bytes is not 0. It covers all
  // stored tokens, the protected ones included. If the protected tokens alone exceed the budget,
  // only they are kept.
  float keep_share = 0;     // (0, 1]: share of the stored tokens
  int32_t keep_tokens = 0;  // tokens for each KV head, on average
  int64_t keep_bytes = 0;   // bytes of the sequence's pages
  float high_share = 1;     // [0, 1]: share of the kept tokens that stays in the high tier
  // mass: dropped tokens received at most 1 - mass_keep of the attention. Tokens outside the high
  // tier received at most 1 - mass_high.
  float mass_high = 0.95f;
  float mass_keep = 0.99f;

  // ---- reading, without a rule. Below 1: a generated token reads this share of the closed tokens
  // of each row, and at least `read_tokens`, in attention tiles that sketches of keys choose
  // (kernels/kv/key_sketch.h). Queries of the prompt read everything.
  float read_share = 1;
  int32_t read_tokens = 512;

  // ---- protected tokens: no rule touches them, and they stay in the high tier
  int32_t sinks = 4;   // first tokens (StreamingLLM)
  int32_t recent = 1;  // closed groups of 64, besides the open one (LeanKV's recent window)
  // True: tokens after the prompt are evaluated too, 64 at a time as they leave the recent groups.
  // False: all generated tokens stay (SnapKV).
  bool compress_generated = true;

  // Returns: true if the rule demotes or drops stored tokens. A quantised format alone is not
  // called lossy.
  constexpr bool is_lossy() const { return rule != KvRule::keep_all; }
  constexpr bool has_low_tier() const { return is_lossy() && !(high == low); }
  constexpr int32_t newest_dense() const { return !is_lossy() && high.is_sparse() ? newest : 0; }
  // Returns: true if rows get budgets by a profile of the model.
  constexpr bool reads_profile() const {
    return divides_budget(rule) && allocator == KvAllocator::retrieval;
  }
  // Returns: true if generated tokens read selected tiles only.
  constexpr bool selects() const { return read_share < 1; }
  // Returns: SequenceSpan::read_tiles of a generated token that follows `context` stored tokens.
  constexpr int32_t read_tiles(int32_t context) const {
    if (!selects()) {
      return 0;
    }
    const int32_t stored = context / kAttentionTile;
    const double share = double{read_share} * stored;
    const auto whole = static_cast<int32_t>(share);
    const int32_t tiles = whole + (whole < share ? 1 : 0);
    const int32_t least = (read_tokens - 1) / kAttentionTile + 1;
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

  // Returns: number of first tokens of the prompt that a sequence of this policy may take from the
  // prefix cache. It computes the last ones itself: scores need their queries, and the residual
  // buffer needs their unquantised form.
  constexpr int32_t shareable(int32_t prompt_tokens) const {
    int32_t own = 0;  // last tokens that the sequence must compute itself
    if (newest_dense() > 0) {
      own = newest_dense() - 1;
    }
    if (key_score == KvKeyScore::output_aware) {
      own = kKvGroup + prompt_tokens % kKvGroup;
    }
    if (is_private() && scorer != KvScorer::none) {
      own = score_window == 0 ? prompt_tokens : score_window > own ? score_window : own;
    }
    return own < prompt_tokens ? prompt_tokens - own : 0;
  }

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
