#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/prefix_cache.h"
#include "engine/tier/block_hash.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {

struct PrefixSetup {
  KvPreset preset;
  std::vector<KvFormat> ladder;
  int32_t window = 0;  // of the second layer
};

// Random sequences that share the pages of a prefix cache. Each one is verified after each change:
// it must read what was stored for its tokens.
class PrefixWorld {
 public:
  static constexpr int32_t kHeadDim = 16;
  static constexpr int32_t kLayers = 2;
  static constexpr int32_t kContext = 700;

  PrefixWorld(const PrefixSetup& setup, uint64_t seed) : setup_(setup), random_(seed) {
    make_cache();
  }
  virtual ~PrefixWorld() = default;

  void run(int64_t operations) {
    for (int64_t i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      now_ += std::chrono::seconds(1);
      before_operation();
      kv_->prefixes().unpin(now_);
      switch (pick(12)) {
        case 0:
        case 1:
        case 2:
          begin();
          break;
        case 3:
        case 4:
        case 5:
        case 6:
          continue_sequence();
          break;
        case 7:
          fork();
          break;
        case 8:
          hand_over();
          break;
        case 9:
          if (pick(40) == 0) {
            kv_->prefixes().flush();
          }
          break;
        default:
          end();
      }
      if (i % 16 == 0) {
        kv_->check_integrity();
      }
    }
    while (!sequences_.empty()) {
      end();
    }
    kv_->check_integrity();
    EXPECT_EQ(
        kv_->prefixes().stats().unlocked_pages + pinned_pages() + kv_->accounting().free_pages(),
        kv_->accounting().pages_total());
    kv_->prefixes().flush();
    EXPECT_EQ(kv_->accounting().free_pages(), kv_->accounting().pages_total());
  }

  PrefixCacheStats stats() const { return kv_->prefixes().stats(); }
  int64_t hits() const { return hits_; }

 protected:
  virtual void before_operation() {}

  struct Text {
    std::vector<int32_t> tokens;
    std::vector<uint64_t> hashes;
    bool accepts = false;  // accepts demoted blocks
  };
  struct Sequence : Text {
    KvSlot slot;
    int32_t stored = 0;
  };

  virtual void before_match(Text&) {}

  // A cache without blocks.
  void make_cache() {
    KvCacheOptions options{.preset = setup_.preset,
                           .prefix_cache = true,
                           .ladder = setup_.ladder,
                           .layers = kLayers,
                           .kv_heads = 1,
                           .head_dim = kHeadDim,
                           .query_heads = 1,
                           .windows = {0, setup_.window},
                           .slots = 5,
                           .context = kContext,
                           .bytes = 0};
    const auto roomy = KvCache::create(options, backend_, threads_.stream()).value();
    KvArenaShape shape = roomy->shape();
    shape.pages /= 2;
    options.bytes = shape.total_bytes();
    kv_ = KvCache::create(options, backend_, threads_.stream()).value();
    block_ = kv_->prefixes().block_tokens();
    dense_.resize(
        static_cast<size_t>((kContext / kKvGroup + 2) * shape.residual_layout().page_bytes));
  }

  int32_t pick(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  int64_t pinned_pages() const {
    return kv_->prefixes().stats().pages - kv_->prefixes().stats().unlocked_pages;
  }

  KvPrompt prompt(Text& sequence) {
    const auto block = static_cast<size_t>(block_);
    while ((sequence.hashes.size() + 1) * block <= sequence.tokens.size()) {
      sequence.hashes.push_back(
          block_hash(std::span(sequence.tokens).subspan(sequence.hashes.size() * block, block)));
    }
    const KvFormat own = setup_.preset.policy.high;
    const bool ladder = sequence.accepts && !setup_.ladder.empty();
    return {sequence.tokens, sequence.hashes, "", own, ladder ? setup_.ladder.back() : own};
  }

  void begin() {
    if (sequences_.size() == 5) {
      return;
    }
    Text sequence;
    sequence.accepts = pick(3) > 0;
    const int32_t length = 1 + pick(kContext);
    for (int32_t i = 0; i < length; ++i) {  // few distinct first blocks, many later ones
      const int32_t block = i / block_;
      if (i % block_ == 0) {
        family_ = block == 0 ? pick(3) : pick(block < 4 ? 2 : 50);
      }
      sequence.tokens.push_back(1000 * family_ + i % block_);
    }
    before_match(sequence);
    const KvMatch match = kv_->prefixes().match(prompt(sequence), INT32_MAX, {});
    const int64_t growth = pages_for(length - kv_->prefixes().tokens_of(match));
    if (kv_->accounting().available_pages() - kv_->prefixes().unlocked_pages(match) < growth) {
      return;
    }
    KvSlot slot = kv_->open_slot(setup_.preset.policy, length);
    kv_->prefixes().attach(slot, match);
    hits_ += match.blocks();
    sequences_.push_back({std::move(sequence), std::move(slot), kv_->prefixes().tokens_of(match)});
    verify(sequences_.back());
  }

  // Stores a chunk of the prompt, or a token after it.
  void continue_sequence() {
    if (sequences_.empty()) {
      return;
    }
    Sequence& sequence = any();
    if (std::ssize(sequence.tokens) == sequence.stored && sequence.stored < kContext) {
      sequence.tokens.push_back(pick(100));
    }
    const auto left = static_cast<int32_t>(std::ssize(sequence.tokens)) - sequence.stored;
    const int32_t count = std::min(left, 1 + pick(300));
    if (count == 0 || kv_->planning().demand(sequence.slot).growth(sequence.stored, count) >
                          kv_->accounting().available_pages()) {
      return;
    }
    const KvReservation wanted[] = {{sequence.slot, sequence.stored + count}};
    kv_->reserve(wanted);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      store(sequence, count, layer);
    }
    sequence.stored += count;
    kv_->prefixes().insert(sequence.slot, prompt(sequence), sequence.stored, true);
    verify(sequence);
    const KvSlot* const slots[] = {&sequence.slot};
    kv_->compress(slots);
    verify(sequence);
  }

  void store(const Sequence& sequence, int32_t count, int32_t layer) {
    std::vector<float> keys;
    std::vector<float> values;
    for (int32_t i = sequence.stored; i < sequence.stored + count; ++i) {
      for (int32_t c = 0; c < kHeadDim; ++c) {
        keys.push_back(number(sequence, i, layer, c));
        values.push_back(number(sequence, i, layer, c + kHeadDim));
      }
    }
    const SequenceSpan spans[] = {{.slot = sequence.slot.index(),
                                   .first_row = 0,
                                   .count = count,
                                   .context = sequence.stored,
                                   .tiers = kv_->tiers(sequence.slot)}};
    backend_.kv_store({.keys = {keys.data(), count, kHeadDim, kHeadDim},
                       .values = {values.data(), count, kHeadDim, kHeadDim},
                       .sequences = spans,
                       .pages = kv_->view(),
                       .layer = layer,
                       .dense = dense_},
                      threads_.stream());
  }

  // The value stored for a token at its position. Exact in f16.
  static float number(const Sequence& sequence, int32_t position, int32_t layer, int32_t channel) {
    const auto token = static_cast<uint32_t>(sequence.tokens[static_cast<size_t>(position)]);
    const uint32_t mixed = (token * 2654435761u ^ static_cast<uint32_t>(position) * 40503u) +
                           static_cast<uint32_t>(layer * 97 + channel * channel * 31);
    return static_cast<float>(mixed % 2048) / 128.0f;
  }

  // All closed tokens must decode to the stored data, after re-encoding where they were demoted.
  void verify(const Sequence& sequence) {
    const KvPagesView pages = kv_->view();
    const KvTiers tiers = kv_->tiers(sequence.slot);
    const int32_t closed = sequence.stored / kKvGroup * kKvGroup;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const int64_t row = pages.row_index(sequence.slot.index(), layer, 0);
      ASSERT_EQ(pages.rows[row].high + pages.rows[row].low, closed);
      int32_t high = 0;
      int32_t low = 0;
      const KvWindows windows = kv_->planning().demand(sequence.slot).windows;
      const bool windowed = layer == 1 && setup_.window > 0;
      // The groups in front of what the next query sees may be gone.
      const int32_t seen = windowed ? std::max(0, sequence.stored + 1 - windows.window) : 0;
      high = seen / kKvGroup * kKvGroup;
      for (int32_t first = high; first < closed; first += kKvGroup) {
        const auto is_here = [&](int32_t i) {
          return is_token(pages, {row, tiers, high + i, true}, sequence, {first + i, layer});
        };
        const bool is_high =
            windowed || low == pages.rows[row].low ||
            (high < pages.rows[row].high && is_here(0) && is_here(17) && is_here(63));
        int32_t& at = is_high ? high : low;
        for (const int32_t i : {0, 17, 63}) {
          ASSERT_TRUE(is_token(pages, {row, tiers, at + i, is_high}, sequence, {first + i, layer}))
              << "position " << first + i << (is_high ? " high" : " low");
        }
        at += kKvGroup;
      }
    }
  }

  struct Place {
    int64_t row;
    KvTiers tiers;
    int32_t at;  // token of the tier
    bool high;
  };
  struct Token {
    int32_t position;
    int32_t layer;
  };
  bool is_token(const KvPagesView& pages, const Place& place, const Sequence& sequence,
                Token token) const {
    const KvPageLayout& high = pages.layouts[place.tiers.high];
    const KvPageLayout& layout = place.high ? high : pages.layouts[place.tiers.low];
    const int32_t entry = place.at / layout.capacity;
    const int32_t id = pages.table(place.row)[place.high ? entry : pages.row_pages - 1 - entry];
    float stored[2 * kHeadDim];
    decode_token(layout, pages.page(id), place.at % layout.capacity, stored, stored + kHeadDim);
    float expected[2 * kHeadDim];
    for (int32_t c = 0; c < 2 * kHeadDim; ++c) {
      expected[c] = number(sequence, token.position, token.layer, c);
    }
    encode_and_decode(high, expected);
    if (!place.high) {
      encode_and_decode(layout, expected);
    }
    return std::equal(stored, stored + 2 * kHeadDim, expected);
  }

  static void encode_and_decode(const KvPageLayout& layout, float* numbers) {
    std::vector<std::byte> page(static_cast<size_t>(layout.page_bytes));
    encode_token(layout, numbers, numbers + kHeadDim, page.data(), 0);
    decode_token(layout, page.data(), 0, numbers, numbers + kHeadDim);
  }

  void fork() {
    if (sequences_.empty() || sequences_.size() == 5) {
      return;
    }
    // Half of the forks come late: they take whole groups of a source that has gone on.
    const Sequence& source = any();
    const int32_t groups = source.stored / kKvGroup;
    const int32_t stored = pick(2) == 0 || groups == 0 || source.accepts
                               ? source.stored
                               : (1 + pick(groups)) * kKvGroup;
    const KvDemand demand = kv_->planning().demand(source.slot);
    if (demand.windows.passed(source.stored, demand.page_tokens) >
        demand.windows.passed(stored, demand.page_tokens)) {
      return;
    }
    if (demand.pages_for(stored) - demand.full_pages(stored) >
        kv_->accounting().available_pages()) {
      return;
    }
    KvSlot target = kv_->open_slot(setup_.preset.policy, stored);
    const KvCopy copies[] = {{source.slot, target, stored}};
    kv_->fork(copies);
    Text text = source;
    if (stored < source.stored) {
      text.tokens.resize(static_cast<size_t>(stored));
      text.hashes.resize(static_cast<size_t>(stored / block_));
    }
    sequences_.push_back({std::move(text), std::move(target), stored});
    verify(sequences_.back());
  }

  void hand_over() {
    if (!sequences_.empty()) {
      kv_->prefixes().hand_over(any().slot);
    }
  }

  void end() {
    if (sequences_.empty()) {
      return;
    }
    const auto place = static_cast<size_t>(pick(static_cast<int32_t>(sequences_.size())));
    verify(sequences_[place]);
    KvSlot& slot = sequences_[place].slot;
    if (pick(20) == 0) {
      pin(sequences_[place]);
    }
    // Release must return as many pages as announced.
    const int64_t before = kv_->accounting().available_pages();
    std::vector<int64_t> returned;
    const KvSlot* const slots[] = {&slot};
    kv_->prefixes().count_unlocked_pages(slots, returned);
    const bool forked =
        std::any_of(sequences_.begin(), sequences_.end(), [&](const Sequence& other) {
          return &other != &sequences_[place] &&
                 other.tokens.front() == sequences_[place].tokens.front();
        });
    const int64_t own = kv_->planning().own_pages(slot, 0);
    kv_->release(std::move(slot));
    if (!forked && setup_.window > 0) {  // others may have passed windows of this path
      EXPECT_GE(kv_->accounting().available_pages(), before + own + returned[0]);
    } else if (!forked) {
      EXPECT_EQ(kv_->accounting().available_pages(), before + own + returned[0]);
    }
    wish(sequences_[place]);
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(place));
  }

  void pin(Text& text) {
    SharedPrefixes& prefixes = kv_->prefixes();
    prefixes.pin(prefixes.match(prompt(text), pick(2 * kContext), {}),
                 {now_, std::chrono::seconds(pick(100)), pick(3), pick(2000)});
  }

  // A hint of a client, with or without a pin.
  void wish(Text& text) {
    SharedPrefixes& prefixes = kv_->prefixes();
    const KvMatch path = prefixes.match(prompt(text), INT32_MAX, {});
    switch (pick(12)) {
      case 0:
        prefixes.demote(path);
        break;
      case 1:
        prefixes.give_up(path, pick(3));
        break;
      case 2:
        prefixes.renew(path, pick(3), now_);
        break;
      case 3:
        prefixes.touch(path);
        break;
      case 4:
        prefixes.yield_pins();
        break;
      default:
        prefixes.demote_some(pick(3));
    }
  }

  Sequence& any() {
    return sequences_[static_cast<size_t>(pick(static_cast<int32_t>(sequences_.size())))];
  }
  int64_t pages_for(int32_t tokens) const {
    return kv_->planning().demand(setup_.preset.policy, 0).pages_for(tokens + kKvGroup);
  }

  const PrefixSetup setup_;
  std::mt19937_64 random_;
  const Backend& backend_ = cpu_backend(CpuIsa::scalar);
  ThreadPool threads_{1};
  std::unique_ptr<KvCache> kv_;
  int32_t block_ = 0;
  std::vector<std::byte> dense_;
  std::vector<Sequence> sequences_;
  PrefixPins::Time now_;
  int32_t family_ = 0;
  int64_t hits_ = 0;  // prefix blocks
};

}  // namespace tessera
