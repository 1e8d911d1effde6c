#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/kv_format.h"
#include "kernels/kv_page.h"

namespace tessera {

// What a sequence does with its keys and values once they are stored: scorer x allocator x rule, as
// plain data. Another method of the literature is a value of one of these enums and one small
// function behind it (kernels/cpu/compress/), not a class.
//
// Papers: LeanKV "Unifying KV Cache Compression for Large Language Models with LeanKV" (2024);
// KV-Compress "Paged KV-Cache Compression with Variable Compression Rates per Attention Head"
// (2024); SnapKV, H2O, PyramidKV, Ada-KV, StreamingLLM as these two and the survey of them describe
// them.

// What a token's significance is made of: the attention probabilities a that queries gave it. The
// query heads of a group are aggregated onto their one KV head, so keys are never repeated.
enum class KvScorer : uint8_t {
  none,  // nothing: all tokens are alike, and among equals the later ones are kept (StreamingLLM)
  mean,  // mean of a over the later queries that count, mean over the group (LeanKV, section 4)
  sum,   // sum of a over the queries that count, mean over the group (H2O)
  squares,  // sum of a^2 over queries and group (KV-Compress, section 4.3, equations 9 to 11)
};

// How a budget of tokens is spread over the rows (layers x KV heads) of a sequence.
enum class KvAllocator : uint8_t {
  uniform,  // the same for every row (H2O, SnapKV)
  pyramid,  // falls linearly with depth, the same for the heads of a layer (PyramidKV)
  heads,    // of a layer's budget a head gets what its tokens win by score (Ada-KV)
  pages,    // whole pages, won by score across all layers and heads (KV-Compress, section 4.2)
};

// Which tokens stay in the high tier, go to the low one, or are dropped.
enum class KvRule : uint8_t {
  keep_all,    // nothing is compressed after it is stored
  thresholds,  // by significance against alpha / N (LeanKV, section 4, Algorithm 1)
  budget,      // by rank, down to a number of tokens
  mass,        // by rank, as long as a share of the attention is kept (LeanKV's T_h, T_l as text)
};

// By what the channels of a key are ranked when it is pruned on its way to a sparse low tier.
enum class KvKeyScore : uint8_t {
  magnitude,     // |k|
  output_aware,  // |k| times what the window's queries put on that channel: the sum of |q| over the
                 // newest closed group and the open one, and over the query heads of the KV head's
                 // group (MUSTAFAR, section 2.1, figure 3: 32 queries)
};

struct KvPolicy {
  KvFormat high = kKvF16;
  KvFormat low = kKvF16;  // the same as `high`: one tier, and a token is kept or dropped

  // Where a sparse format is everybody's, without a rule: a generated token reads so many of the
  // newest tokens dense at least (MUSTAFAR, section 3: 32), besides its own group's. At most
  // kKvGroup, which is what the window holds; 0: its own group's alone.
  int32_t newest = 32;

  // ---- scorer. Of the prompt only its last `score_window` queries count (0: all of them). With
  // score_generated the queries after the prompt count too (KV-Compress, equation 20).
  KvScorer scorer = KvScorer::none;
  int32_t score_window = 64;  // LeanKV 64 (as its code), SnapKV 32, KV-Compress 8, H2O all
  int32_t score_pool = 1;     // odd: a prompt token's score becomes the highest among so many
                              // neighbours (SnapKV; KV-Compress, equation 8: 7)
  bool score_generated = false;
  KvKeyScore key_score = KvKeyScore::magnitude;

  // ---- allocator, with the rule `budget`
  KvAllocator allocator = KvAllocator::uniform;
  float pyramid_steepness = 20;  // > 1: the last layer gets 1 / so much of the mean (PyramidKV)
  float head_floor = 0.2f;  // [0, 1]: this share of a head's uniform budget is its own (Ada-KV)

  // ---- rule
  KvRule rule = KvRule::keep_all;
  // thresholds: high from alpha_high / N on, low from alpha_low / N on, N the tokens there are.
  float alpha_high = 1;
  float alpha_low = 0;
  // budget: exactly one of these is not 0. All stored tokens count, the protected ones too; where
  // those alone are more, they are what is kept.
  float keep_share = 0;     // (0, 1] of the tokens there are
  int32_t keep_tokens = 0;  // of a KV head, on the average
  int64_t keep_bytes = 0;   // of the sequence's pages
  float high_share = 1;     // [0, 1] of what is kept stays in the high tier
  // mass: what is dropped had at most 1 - mass_keep of the attention, what is not in the high tier
  // at most 1 - mass_high.
  float mass_high = 0.95f;
  float mass_keep = 0.99f;

  // ---- what no rule touches: it stays in the high tier
  int32_t sinks = 4;   // first tokens (StreamingLLM)
  int32_t recent = 1;  // closed groups of 64, besides the open one (LeanKV's recent window)
  // Whether tokens are judged after the prompt too, 64 at a time as they leave the recent window;
  // otherwise generated tokens all stay (SnapKV).
  bool compress_generated = true;

  constexpr bool is_lossy() const { return rule != KvRule::keep_all; }
  constexpr bool has_low_tier() const { return is_lossy() && !(high == low); }
  constexpr int32_t newest_dense() const { return !is_lossy() && high.is_sparse() ? newest : 0; }
  // Whether keys are pruned after they were stored, so that later queries may have a say in it.
  constexpr bool prunes_keys() const { return has_low_tier() && low.key_keep < KvFormat::kKeepAll; }
  // Whether tokens need marks: a position each, and a score where there is a scorer.
  constexpr bool needs_token_scores() const { return is_lossy(); }

  // Of a prompt of so many tokens, how many of the first ones a sequence of this policy may find
  // stored by another: scores want the queries behind them, and the window their dense form.
  constexpr int32_t shareable(int32_t prompt_tokens) const {
    int32_t own = 0;  // of the last ones
    if (newest_dense() > 0) {
      own = newest_dense() - 1;
    }
    if (key_score == KvKeyScore::output_aware) {
      own = kKvGroup + prompt_tokens % kKvGroup;
    }
    if (is_lossy() && scorer != KvScorer::none) {
      own = score_window == 0 ? prompt_tokens : score_window > own ? score_window : own;
    }
    return own < prompt_tokens ? prompt_tokens - own : 0;
  }

  friend constexpr bool operator==(const KvPolicy&, const KvPolicy&) = default;
};

inline constexpr int32_t kMaxScorePool = 63;
inline constexpr int32_t kMaxScoreWindow = 1 << 20;
inline constexpr int32_t kMaxRecentGroups = 1 << 14;

// Empty if `policy` makes sense; otherwise what is wrong, by the name of the field.
std::string policy_error(const KvPolicy& policy);

// Bytes of one token's key and value and what describes them: the order of formats by density.
double token_bytes(KvFormat format, int32_t head_dim);

std::string_view name_of(KvScorer scorer);
std::string_view name_of(KvKeyScore score);
std::string_view name_of(KvAllocator allocator);
std::string_view name_of(KvRule rule);

// ---- named policies: the one table

struct KvPreset {
  std::string name;
  KvPolicy policy;

  friend bool operator==(const KvPreset&, const KvPreset&) = default;
};

// Everything in one format, under its name.
inline KvPreset uniform_kv(KvFormat format) {
  return {name_of(format), {.high = format, .low = format}};
}
inline const KvPreset kKvPresetF32 = uniform_kv(kKvF32);
inline const KvPreset kKvPresetF16 = uniform_kv(kKvF16);
inline const KvPreset kKvPresetK8V4 = uniform_kv(kKvK8V4);

std::span<const KvPreset> kv_presets();

// Null if there is none of that name.
const KvPreset* find_kv_preset(std::string_view name);

}  // namespace tessera
