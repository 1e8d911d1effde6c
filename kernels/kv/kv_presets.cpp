#include "kernels/kv/kv_policy.h"

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

// WindowKV with its windows of 8 tokens, its last 16 queries and the slope of its budgets. The
// paper chooses windows for all heads of a layer, and groups of 8 layers share a choice; here each
// head chooses. Its classifier of tasks is not built: windows count by their mean.
constexpr KvPolicy windowkv() {
  KvPolicy policy = snapkv(KvAllocator::pyramid);
  policy.score_window = 16;
  policy.score_pool = 8;
  policy.pooling = KvPooling::window;
  policy.pyramid_steepness = 14;
  return policy;
}

// KVCrush on SnapKV's scores, in windows of 8 tokens. The paper describes a token by the heads that
// keep it; here, as in its form for blocks, a window is described by which of its tokens are in the
// better half of the row. The anchor alternates. Representatives are chosen once, behind the
// prompt.
constexpr KvPolicy kvcrush() {
  KvPolicy policy = snapkv(KvAllocator::uniform);
  policy.score_pool = 8;
  policy.pooling = KvPooling::representatives;
  policy.representative_share = 0.25f;
  return policy;
}

// Scissorhands counts over the last 400 queries and protects the last 10 tokens; here they are 64
// or more. It keeps a number of tokens for each layer, chosen by that layer's persistence; here the
// budget is the same for every layer, or that of `allocator`.
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

// DuoAttention: half of the heads of a model with grouped queries keep everything, the others 64
// sinks and the newest 256 tokens.
constexpr KvPolicy duoattention() {
  KvPolicy policy = pruning(KvScorer::none, 0);
  policy.allocator = KvAllocator::retrieval;
  policy.retrieval_share = 0.5f;
  policy.keep_tokens = 64 + 256;
  policy.sinks = 64;
  return policy;
}

// RazorAttention: 15 % of the heads keep everything, the others 4 sinks and a fifth of the tokens.
// The paper never drops below 4,000 tokens, and adds a mean of the dropped ones.
constexpr KvPolicy razorattention() {
  KvPolicy policy = pruning(KvScorer::none, 0.2f);
  policy.allocator = KvAllocator::retrieval;
  policy.retrieval_share = 0.15f;
  return policy;
}

// CompressKV's budgets, by layer in the paper. Its choice of tokens, by the attention of heads that
// retrieve by meaning, is SnapKV's here.
constexpr KvPolicy compresskv() {
  return snapkv(KvAllocator::losses);
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

// Quest (2024). The paper reads a number of tokens; here it is a share. It ranks pages of 16 tokens
// by bounds of their keys; here sketches rank attention tiles (kernels/kv/key_sketch.h).
constexpr KvPolicy quest() {
  KvPolicy policy;
  policy.high = kKvK8V4;
  policy.low = kKvK8V4;
  policy.read_share = 0.25f;
  return policy;
}

}  // namespace

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
      {"windowkv", windowkv()},
      {"kvcrush", kvcrush()},
      {"lazyeviction", lazyeviction()},
      {"duoattention", duoattention()},
      {"razorattention", razorattention()},
      {"compresskv", compresskv()},
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
