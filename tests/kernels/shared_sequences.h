#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_rows.h"
#include "tests/kernels/step_plan.h"

namespace tessera {

// Decoding sequences whose rows begin with common pages, for tests of every backend.
struct SharedShape {
  KvFormat high = kKvF16;
  KvFormat low = kKvK4V2;
  int32_t head_dim = 16;
  int32_t kv_heads = 2;
  int32_t gqa_ratio = 2;
  int32_t page_tokens = 16;
  int32_t sliding_window = 0;
  int32_t row_tokens = 4096;
};

// Returns: tokens of a page of the high tier.
inline int32_t capacity_of(const SharedShape& shape) {
  int64_t page_bytes = 0;
  for (const KvFormat each : {shape.high, shape.low}) {
    page_bytes = std::max(page_bytes,
                          KvPageLayout::make(each, shape.head_dim, shape.page_tokens).page_bytes);
  }
  return KvPageLayout::fit(shape.high, shape.head_dim, page_bytes).capacity;
}

// A sequence whose rows begin with the first `pages` pages of the rows of an earlier one.
struct Branch {
  size_t from = 0;
  int32_t pages = 0;
  KvRow own;  // tokens after the shared pages; low tokens are in the low tier
};

// Sequences of one new token each. Their rows have pages in common.
class SharedSequences {
 public:
  SharedSequences(const SharedShape& shape, const std::vector<Branch>& branches, uint32_t seed)
      : shape_(shape),
        random_(seed),
        rows_({.formats = {shape.high, shape.low},
               .head_dim = shape.head_dim,
               .page_tokens = shape.page_tokens,
               .slots = static_cast<int32_t>(branches.size()),
               .layers = 2,
               .kv_heads = shape.kv_heads,
               .row_tokens = shape.row_tokens},
              random_) {
    for (size_t i = 0; i < branches.size(); ++i) {
      put(static_cast<int32_t>(i), branches[i]);
    }
    queries_ = random_floats(random_, std::ssize(spans_) * width(), 2.0f);
  }

  const KvPagesView& view() const { return rows_.view(); }
  int32_t capacity() const { return view().layouts[0].capacity; }
  const int32_t* pages(int64_t sequence, int32_t kv_head) const {
    return view().table(
        view().row_index(spans_[static_cast<size_t>(sequence)].slot, kLayer, kv_head));
  }

  AttentionArgs args() {
    out_.assign(queries_.size(), NAN);
    log_sums_.assign(spans_.size() * static_cast<size_t>(query_heads()), NAN);
    const int64_t count = std::ssize(spans_);
    return {.queries = {queries_.data(), count, width(), width()},
            .sequences = spans_,
            .pages = view(),
            .layer = kLayer,
            .query_heads = query_heads(),
            .scale = 0.25f,
            .sliding_window = shape_.sliding_window,
            .dense = {},
            .out = {out_.data(), count, width(), width()},
            .log_sums = {log_sums_.data(), count, query_heads(), query_heads()},
            .scratch = {}};
  }

  struct Reads {
    bool shared = true;
    bool scored = false;   // every other sequence leaves weights for kv_score
    bool divided = false;  // PlanAttentionArgs::divide_splits
  };
  struct Bits {
    std::vector<uint32_t> results;  // outputs and log sums
    std::vector<uint32_t> weights;
    bool operator==(const Bits&) const = default;
  };
  Bits attend(const Device& device, const Reads& reads) {
    AttentionArgs args = this->args();
    const auto count = static_cast<int32_t>(spans_.size());
    const StepLimits limits{count, count, shape_.row_tokens};
    std::vector<std::byte> scratch(static_cast<size_t>(
        device.backend->attention_scratch_bytes(limits, query_heads(), shape_.head_dim)));
    args.scratch = scratch;
    args.share_reads = reads.shared;
    std::vector<KvScoring> scorings(spans_.size());
    const int64_t cols = attention_weight_row_floats(shape_.row_tokens, shape_.gqa_ratio);
    std::vector<float> weights(static_cast<size_t>(count * shape_.kv_heads * cols));
    if (reads.scored) {
      for (size_t i = 0; i < scorings.size(); i += 2) {
        scorings[i] = {.token_scores = true, .scorer = KvScorer::sum, .begin = 0, .end = INT32_MAX};
      }
      args.scorings = scorings;
      args.weights = {weights.data(), int64_t{count} * shape_.kv_heads, cols, cols};
    }
    const std::vector<std::byte> plan = plan_step(device, limits, args, reads.divided);
    device.backend->attention(args, device.stream);
    device.wait(device.stream);
    Bits bits;
    append_bits(bits.results, out_);
    append_bits(bits.results, log_sums_);
    append_bits(bits.weights, weights);
    return bits;
  }

 private:
  static constexpr int32_t kLayer = 1;
  static void append_bits(std::vector<uint32_t>& bits, const std::vector<float>& floats) {
    for (const float x : floats) {
      bits.push_back(std::bit_cast<uint32_t>(x));
    }
  }
  int32_t query_heads() const { return shape_.kv_heads * shape_.gqa_ratio; }
  int64_t width() const { return int64_t{query_heads()} * shape_.head_dim; }

  void put(int32_t slot, const Branch& branch) {
    const int32_t common = branch.pages * capacity();
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const int64_t row = view().row_index(slot, kLayer, head);
      if (slot > 0) {
        std::copy_n(pages(static_cast<int64_t>(branch.from), head), branch.pages,
                    rows_.tables().begin() + row * view().row_pages);
        view().rows[row].high = common;
      }
      for (int32_t i = 0; i < branch.own.high + branch.own.low; ++i) {
        const auto keys = random_floats(random_, shape_.head_dim);
        const auto values = random_floats(random_, shape_.head_dim);
        if (i < branch.own.high) {
          rows_.append_high(row, 0, keys, values);
        } else {
          rows_.append_low(row, 1, keys, values);
        }
      }
      for (int32_t i = 0; i < kKvGroup; ++i) {
        KvRows::put(view().residual_layout, view().residual(row), i,
                    random_floats(random_, shape_.head_dim),
                    random_floats(random_, shape_.head_dim));
      }
    }
    // Whole groups are stored; part of the next one is in the residual buffer.
    const int32_t stored = common * (slot > 0 ? 1 : 0) + branch.own.high + branch.own.low;
    const int32_t open = static_cast<int32_t>(random_() % (kKvGroup - 1));
    const uint8_t low_tier = shape_.sliding_window > 0 ? 0 : 1;
    spans_.push_back({slot, slot, 1, stored / kKvGroup * kKvGroup + open, KvTiers{0, low_tier}});
  }

  SharedShape shape_;
  std::mt19937 random_;
  KvRows rows_;
  std::vector<SequenceSpan> spans_;
  std::vector<float> queries_;
  std::vector<float> out_;
  std::vector<float> log_sums_;
};

// Each sequence begins like a random earlier one, up to a random place.
inline std::vector<Branch> random_branches(std::mt19937& random, int32_t capacity, int32_t tokens) {
  const auto below = [&](int32_t end) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(end));
  };
  const size_t count = 2 + random() % 9;
  std::vector<Branch> branches{{0, 0, {tokens / 64 * 64, 0}}};
  std::vector<int32_t> full{branches[0].own.high / capacity};  // pages
  while (branches.size() < count) {
    const size_t from = random() % branches.size();
    const int32_t max = full[from];
    const int32_t pages = random() % 4 == 0 ? max : below(max + 1);
    const int32_t low = random() % 3 == 0 ? 64 * below(3) : 0;
    branches.push_back({from, pages, {64 * below(4), low}});
    full.push_back((pages * capacity + branches.back().own.high) / capacity);
  }
  return branches;
}

}  // namespace tessera
