#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/kv_slots.h"
#include "bench/ops/ops.h"
#include "bench/ops/paper_leankv.h"
#include "kernels/kv/kv_page_size.h"

namespace tessera::bench {
namespace {

constexpr int32_t kPrompt = 2048;
constexpr KvTiers kTiers{0, 1};

const KvPolicy& leankv() {
  static const KvPolicy kPolicy = paper_leankv();
  return kPolicy;
}

// Slots in one identical state, which calls compress in turn. The state is the end of a prompt, or
// steady state: one group later, the state of most calls. Slot 0 is brought to this state and
// swapped out once. Outside of the timed part, compressed slots are released and swapped in from
// that snapshot.
class CompressedSlots {
 public:
  CompressedSlots(bool steady, const Setup& setup, const Shape& shape)
      : slots_(arena_shape(setup, shape), setup),
        normal_(random_floats(shape.layers * shape.kv_heads * int64_t{kPrompt + kKvGroup})),
        scratch_(slots_.device(), slots_.backend().kv_compress_scratch_bytes(slots_.arena().view(),
                                                                             slots_.stream())) {
    sequence_ = {.tiers = kTiers, .policy = leankv(), .prompt_tokens = kPrompt};
    append(kPrompt);
    if (steady) {
      compress_first();
      sequence_.evaluated = sequence_.evaluated_after();
      append(kKvGroup);
    }
    snapshot_ = slots_.save(0, kTiers, sequence_.tokens);
    compress_first();
    cost_ = op_cost(args(slots_.arena().host_pool()));
    for (int32_t slot = 0; slot < count(); ++slot) {
      compressed_.push_back(slot);
    }
    restore();
  }

  int32_t count() { return slots_.arena().shape().slots; }
  int64_t cycled_bytes() { return count() * cost_.bytes(); }
  const OpCost& cost() const { return cost_; }

  KvCompressArgs next() {
    sequence_.slot = cursor_;
    compressed_.push_back(cursor_);
    cursor_ = (cursor_ + 1) % count();
    return args(slots_.arena().pool());
  }

  void restore() {
    slots_.release(compressed_);
    for (const int32_t slot : compressed_) {
      slots_.load(slot, kTiers, sequence_.tokens, snapshot_);
    }
    compressed_.clear();
  }

 private:
  static KvArenaShape arena_shape(const Setup& setup, const Shape& shape) {
    const KvPolicy& policy = leankv();
    const std::vector<KvFormatUse> uses{{policy.high, false}, {policy.low, false}};
    KvArenaShape arena{.formats = {policy.high, policy.low},
                       .head_dim = shape.head_dim,
                       .page_bytes = best_page_bytes(uses, shape.head_dim),
                       .layers = shape.layers,
                       .kv_heads = shape.kv_heads,
                       .context = kPrompt + kKvGroup,
                       .token_scores = true};
    arena.slots = KvSlots::count(setup, arena.slot_rows() * arena.row_pages() * arena.page_bytes);
    return arena;
  }

  KvCompressArgs args(const KvPool& pool) {
    return {.pool = pool,
            .sequences = {&sequence_, 1},
            .results = {&result_, 1},
            .scratch = scratch_.span()};
  }
  void compress_first() {
    slots_.backend().kv_compress(args(slots_.arena().pool()), slots_.stream());
  }

  // Appends `tokens` tokens to slot 0 and sets the scores of all its tokens.
  void append(int32_t tokens) {
    slots_.append(0, kTiers, tokens);
    sequence_.tokens += tokens;
    KvPagesView pages = slots_.arena().host_pool().pages;
    const int64_t rows = slots_.arena().shape().slot_rows();
    KvTokenScore* const place = pages.token_scores;
    std::vector<KvTokenScore> all = slots_.device().download(place, rows * pages.row_token_scores);
    pages.token_scores = all.data();
    for (int64_t row = 0; row < rows; ++row) {
      const KvRow& counts = pages.rows[row];
      KvTokenScore* token_scores = pages.token_score_row(row);
      for (int32_t i = 0; i < tokens; ++i) {
        token_scores[counts.high - tokens + i].position = sequence_.tokens - tokens + i;
      }
      const float* normal = normal_.data() + row * (kPrompt + kKvGroup);
      for (int32_t i = 0; i < counts.high; ++i) {
        token_scores[i].score = score(*normal++, token_scores[i].position);
      }
      for (int32_t j = 0; j < counts.low; ++j) {
        KvTokenScore& token_score = token_scores[pages.row_token_scores - 1 - j];
        token_score.score = score(*normal++, token_score.position);
      }
    }
    slots_.device().upload(place, all);
  }

  // Few tokens get most of the attention: log-normal shares, whose mean is one token's share of
  // all. One token in six is above leankv's threshold. Scores that are drawn again put other tokens
  // above it.
  float score(float normal, int32_t position) const {
    const int32_t begin = scoring_of(sequence_.policy, kPrompt).begin;
    const int32_t queries = sequence_.tokens - std::max(position + 1, begin);
    return std::exp(2 * normal - 2) / static_cast<float>(sequence_.tokens) *
           static_cast<float>(queries);
  }

  KvSlots slots_;
  std::vector<float> normal_;
  DeviceArray scratch_;
  std::vector<std::byte> snapshot_;
  KvCompression sequence_;
  KvCompressed result_;
  OpCost cost_;
  int32_t cursor_ = 0;
  std::vector<int32_t> compressed_;
};

std::vector<Variant> prepare_compress(bool steady, const Setup& setup, const Shape& shape) {
  const auto slots = std::make_shared<CompressedSlots>(steady, setup, shape);
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back(
        {.format = "leankv",
         .isa = std::string(isa),
         .peer = {},
         .cost = slots->cost(),
         .cycled_bytes = slots->cycled_bytes(),
         .call = [slots, &backend,
                  stream = setup.device->stream()] { backend.kv_compress(slots->next(), stream); },
         .restore = [slots] { slots->restore(); },
         .max_calls = slots->count()});
  }
  return variants;
}

std::vector<Case> compress_cases(const Setup& setup, const Shape& shape) {
  const int32_t rows = shape.layers * shape.kv_heads;
  std::vector<Case> all;
  for (const bool steady : {false, true}) {
    const int32_t tokens = kPrompt + (steady ? kKvGroup : 0);
    all.push_back({.label = (steady ? "a group at " : "prompt of ") + std::to_string(tokens) +
                            " rows " + std::to_string(rows),
                   .parameters = {{"tokens", tokens}, {"rows", rows}},
                   .prepare = [=, &setup] { return prepare_compress(steady, setup, shape); }});
  }
  return all;
}

}  // namespace

Op kv_compress_op() {
  return {"kv_compress", "a sequence's tokens evaluated, demoted and dropped by leankv",
          compress_cases};
}

}  // namespace tessera::bench
