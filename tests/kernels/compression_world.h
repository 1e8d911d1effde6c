#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "kernels/cpu/pages/page_codec.h"
#include "tests/kernels/compression_oracle.h"
#include "tests/kernels/head_profiles.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_sequences.h"

namespace tessera {

struct WorldShape {
  std::vector<KvFormat> formats;
  int32_t head_dim = 16;
  int32_t layers = 2;
  int32_t kv_heads = 2;
  int32_t slots = 3;
  int32_t context = 400;
  int32_t page_tokens = 16;    // of the least dense format
  int32_t section_scores = 0;  // KvPagesView::section_scores: append() then writes no token scores
  int threads = 1;
};

// An arena with sequences of random keys, values and scores. It records every token, so that the
// result of compression can be compared with the expected one.
class CompressionWorld {
 public:
  CompressionWorld(const WorldShape& shape, uint32_t seed, CpuIsa isa = CpuIsa::scalar)
      : shape_(shape),
        backend_(cpu_backend(isa)),
        pool_(shape.threads),
        random_(seed),
        normals_(random_floats(random_, kNormals)) {
    KvArenaShape arena{
        .formats = shape.formats,
        .head_dim = shape.head_dim,
        .slots = shape.slots,
        .layers = shape.layers,
        .kv_heads = shape.kv_heads,
        .context = shape.context,
        .token_scores = true,
        .section_scores = shape.section_scores,
        .query_sums = true,
        .head_profiles = uneven_head_profiles(int64_t{shape.layers} * shape.kv_heads)};
    for (const KvFormat format : shape.formats) {
      arena.page_bytes =
          std::max(arena.page_bytes,
                   KvPageLayout::make(format, shape.head_dim, shape.page_tokens).page_bytes);
    }
    arena.pages = static_cast<int32_t>(arena.rows()) * (arena.row_pages() + 1);
    arena_ = KvArena::make(arena);
    sequences_.resize(static_cast<size_t>(shape.slots));
    scratch_.resize(
        static_cast<size_t>(backend_.kv_compress_scratch_bytes(arena_->view(), pool_.stream())));
  }

  struct Sequence {
    KvPolicy policy;
    KvTiers tiers;
    int32_t tokens = 0;
    int32_t prompt = 0;
    int32_t evaluated = 0;
    int32_t forgotten = 0;  // last of `tokens`, those of a replay: KvCompression::forgotten
    int32_t section = 0;    // KvCompression::section
  };
  Sequence& sequence(int32_t slot) { return sequences_[static_cast<size_t>(slot)]; }
  KvArena& arena() { return *arena_; }
  KvPagesView pages() const { return arena_->view(); }
  std::mt19937& random() { return random_; }
  const WorldShape& shape() const { return shape_; }
  int32_t rows() const { return shape_.layers * shape_.kv_heads; }
  int64_t row(int32_t slot, int32_t index) const { return int64_t{slot} * rows() + index; }

  void open(int32_t slot, const KvPolicy& policy, int32_t prompt) {
    sequence(slot) = {.policy = policy, .tiers = tiers_of(policy), .prompt = prompt};
  }
  KvTiers tiers_of(const KvPolicy& policy) const {
    const auto place = [&](KvFormat format) {
      return static_cast<uint8_t>(std::find(shape_.formats.begin(), shape_.formats.end(), format) -
                                  shape_.formats.begin());
    };
    return {place(policy.high), place(policy.low)};
  }

  // Stores `count` tokens and gives them token scores: their positions and random scores.
  void append(int32_t slot, int32_t count) {
    Sequence& at = sequence(slot);
    const int64_t cols = int64_t{shape_.kv_heads} * shape_.head_dim;
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      const std::vector<float> keys = channels(count * cols);
      const std::vector<float> values = channels(count * cols);
      if (layer == 0) {
        grow(slot, count);
      }
      store(slot, layer, keys, values);
    }
    for (int32_t i = 0; i < rows(); ++i) {
      const KvRow counts = pages().rows[row(slot, i)];
      const int32_t first = counts.high + (at.tokens + count) % kKvGroup - count;
      for (int32_t t = 0; t < count; ++t) {
        const KvTokenScore token_score{random_score(), at.tokens + t};
        if (shape_.section_scores == 0) {
          pages().token_score_row(row(slot, i))[first + t] = token_score;
        }
      }
    }
    at.tokens += count;
  }

  // Coarse, so that ties are common; mostly small, like attention.
  float random_score() {
    const int32_t x = static_cast<int32_t>(random_() % 64);
    return static_cast<float>(x * x * x) / 65536.0f;
  }
  // Changes all scores, as a later query would.
  void change_scores(int32_t slot) {
    const Sequence& at = sequence(slot);
    for (int32_t i = 0; i < rows(); ++i) {
      for_each_token_score(slot, i, [&](KvTokenScore& token_score) {
        token_score.score = with_scorer(at.policy.scorer, [&](auto scorer) {
          return score_after<decltype(scorer)>(token_score.score, random_score());
        });
      });
    }
  }
  template <class Visit>
  void for_each_token_score(int32_t slot, int32_t index, Visit&& visit) {
    const KvRow counts = pages().rows[row(slot, index)];
    KvTokenScore* token_scores = pages().token_score_row(row(slot, index));
    for (int32_t i = 0; i < counts.high + sequence(slot).tokens % kKvGroup; ++i) {
      visit(token_scores[i]);
    }
    for (int32_t j = 0; j < counts.low; ++j) {
      visit(token_scores[pages().row_token_scores - 1 - j]);
    }
  }

  KvCompression compression(int32_t slot) const {
    const Sequence& at = sequences_[static_cast<size_t>(slot)];
    return {.slot = slot,
            .tiers = at.tiers,
            .policy = at.policy,
            .tokens = at.tokens - at.forgotten,
            .prompt_tokens = at.prompt,
            .evaluated = at.evaluated,
            .forgotten = at.forgotten,
            .section = at.section};
  }
  KvCompressed compress(int32_t slot) {
    const KvCompression one[] = {compression(slot)};
    KvCompressed result;
    backend_.kv_compress({arena_->pool(), one, {&result, 1}, scratch_}, pool_.stream());
    sequence(slot).evaluated = std::max(sequence(slot).evaluated, one[0].evaluated_after());
    sequence(slot).tokens -= std::exchange(sequence(slot).forgotten, 0);
    return result;
  }

  void release(int32_t slot) {
    const int32_t slots[] = {slot};
    backend_.kv_resize({arena_->pool(), slots, {}}, pool_.stream());
    sequence(slot) = {};
  }
  void fork(int32_t from, int32_t to) {
    const KvFork forks[] = {{from, to, sequence(from).tiers}};
    backend_.kv_fork({arena_->pool(), forks}, pool_.stream());
    sequence(to) = sequence(from);
  }

  // Place of a token, and its decoded channels.
  struct Stored {
    bool low = false;
    bool pinned = false;
    float score = 0;
    std::vector<float> channels;  // keys, then values

    friend bool operator==(const Stored&, const Stored&) = default;
  };
  using StoredRow = std::map<int32_t, Stored>;  // by position
  StoredRow stored_row(int32_t slot, int32_t index) const {
    const Sequence& at = sequences_[static_cast<size_t>(slot)];
    const int64_t r = row(slot, index);
    const KvRow counts = pages().rows[r];
    const KvTokenScore* token_scores = pages().token_score_row(r);
    const KvPageLayout& high = pages().layouts[at.tiers.high];
    const KvPageLayout& low = pages().layouts[at.tiers.low];
    StoredRow tokens;
    const auto add = [&](const KvTokenScore& token_score, bool in_low, bool pinned,
                         std::vector<float> x) {
      EXPECT_TRUE(tokens
                      .emplace(token_score.position,
                               Stored{in_low, pinned, token_score.score, std::move(x)})
                      .second)
          << "position " << token_score.position << " twice";
    };
    const int32_t high_pinned = pinned(r, 0, 1, counts.high, high.capacity);
    for (int32_t i = 0; i < counts.high; ++i) {
      const std::byte* page = pages().page(pages().table(r)[i / high.capacity]);
      add(token_scores[i], false, i < high_pinned, decode(high, page, i % high.capacity));
    }
    const int32_t last = pages().row_pages - 1;
    const int32_t low_pinned = pinned(r, last, -1, counts.low, low.capacity);
    for (int32_t j = 0; j < counts.low; ++j) {
      const std::byte* page = pages().page(pages().table(r)[last - j / low.capacity]);
      add(token_scores[pages().row_token_scores - 1 - j], true, j < low_pinned,
          decode(low, page, j % low.capacity));
    }
    for (int32_t o = 0; o < at.tokens % kKvGroup; ++o) {
      add(token_scores[counts.high + o], false, false,
          decode(pages().residual_layout, pages().residual(r), o));
    }
    return tokens;
  }
  std::vector<float> demoted(int32_t slot, const std::vector<float>& channels) const {
    const KvPageLayout& low = pages().layouts[sequences_[static_cast<size_t>(slot)].tiers.low];
    std::vector<std::byte> page(static_cast<size_t>(low.page_bytes));
    encode_token(low, channels.data(), channels.data() + shape_.head_dim, page.data(), 0);
    return decode(low, page.data(), 0);
  }

 private:
  // A prime number of floats, so that no two tokens stored at once are equal.
  static constexpr int64_t kNormals = 32749;

  // Normal numbers, taken from those drawn at the start. Drawing new ones would take half of the
  // time of a long test.
  std::vector<float> channels(int64_t count) {
    std::vector<float> floats(static_cast<size_t>(count));
    size_t at = random_() % normals_.size();
    for (float& x : floats) {
      x = normals_[at];
      at = at + 1 < normals_.size() ? at + 1 : 0;
    }
    return floats;
  }
  std::vector<float> decode(const KvPageLayout& layout, const std::byte* page,
                            int32_t token) const {
    std::vector<float> x(static_cast<size_t>(2 * shape_.head_dim));
    decode_token(layout, page, token, x.data(), x.data() + shape_.head_dim);
    return x;
  }
  int32_t pinned(int64_t r, int32_t entry, int32_t step, int32_t tokens, int32_t capacity) const {
    int32_t end = 0;
    for (int32_t begin = 0; begin < tokens; begin += capacity, entry += step) {
      if (arena_->pool().owners[pages().table(r)[entry]] > 1) {
        end = begin + capacity;
      }
    }
    return end;
  }
  void grow(int32_t slot, int32_t count) {
    const Sequence& at = sequence(slot);
    const int32_t closed = (at.tokens + count) / kKvGroup - at.tokens / kKvGroup;
    const KvGrowth grown[] = {{slot, at.tiers, kKvGroup * closed}};
    backend_.kv_resize({arena_->pool(), {}, grown}, pool_.stream());
  }
  void store(int32_t slot, int32_t layer, const std::vector<float>& keys,
             const std::vector<float>& values) {
    const Sequence& at = sequence(slot);
    const int64_t cols = int64_t{shape_.kv_heads} * shape_.head_dim;
    const int64_t count = std::ssize(keys) / cols;
    const SequenceSpan spans[] = {{slot, 0, static_cast<int32_t>(count), at.tokens, at.tiers}};
    dense_.resize(static_cast<size_t>(dense_groups(spans[0]) * shape_.kv_heads *
                                      pages().residual_layout.page_bytes));
    backend_.kv_store({.keys = {keys.data(), count, cols, cols},
                       .values = {values.data(), count, cols, cols},
                       .sequences = spans,
                       .pages = pages(),
                       .layer = layer,
                       .dense = dense_},
                      pool_.stream());
  }

  WorldShape shape_;
  const Backend& backend_;
  ThreadPool pool_;
  std::mt19937 random_;
  std::vector<float> normals_;
  std::unique_ptr<KvArena> arena_;
  std::vector<Sequence> sequences_;
  std::vector<std::byte> scratch_;
  std::vector<std::byte> dense_;
};

}  // namespace tessera
