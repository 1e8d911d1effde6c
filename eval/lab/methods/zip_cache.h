#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/levels.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// Holds salient tokens in more bits than the others: keys by channel, values by token after a
// division by scales of the channels. A token's saliency is the mean attention of the probes that
// see it (ZipCache, sections 4.1 to 4.3). Generated tokens are compressed by hundreds.
class ZipCache final : public Cloned<ZipCache> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<ZipCache>();
    method->salient_ = settings.number("salient", 0.6);
    method->bits_ = settings.integer("bits", 4);
    method->low_bits_ = settings.integer("low_bits", 2);
    method->gap_ = settings.integer("gap", 100);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    kv_heads_ = prompt.shape.kv_heads;
    const int32_t tokens = prompt.size();
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      for (int32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        saliencies_.emplace_back(tokens);
        for (int32_t i = 0; i < prompt.shape.group(); ++i) {
          const int32_t head = kv_head * prompt.shape.group() + i;
          for (int32_t query = 0; query < tokens; ++query) {
            if (!is_probe(query, tokens)) continue;
            saliencies_.back().see(attention_row(prompt, layer, head, query));
          }
        }
      }
    }
    compress(tokens, cache);
  }

  void after_read(const Read& read, MatrixView<const float> weights, HeadCache& head) override {
    const int32_t place = head.size() - 1 - done_;
    if (!is_probe(place, gap_)) return;
    Saliency& own = saliencies_[static_cast<size_t>(read.layer * kv_heads_ + read.kv_head)];
    for (int64_t i = 0; i < weights.rows; ++i) {
      own.see(weights.row(i).subspan(static_cast<size_t>(done_)));
    }
  }

  void after_token(Cache& cache) override {
    if (cache.tokens - done_ >= gap_) compress(cache.tokens, cache);
  }

  // Counts levels; least number and step of a channel of keys in each class and of a token's
  // values; the scales of the channels of values in f16, a bit for each token's class, and tokens
  // that are not compressed in f16.
  int64_t bytes(const Cache& cache) const override {
    const int64_t rest = cache.tokens - done_;
    return bytes_ + std::ssize(cache.heads) * rest * 2 * cache.shape.head_dim * kHalfBytes;
  }

 private:
  // The attention of probes to the tokens of a block.
  struct Saliency {
    explicit Saliency(int32_t tokens)
        : sums(static_cast<size_t>(tokens)), probes(static_cast<size_t>(tokens)) {}
    void see(std::span<const float> row) {
      for (size_t i = 0; i < row.size(); ++i) {
        sums[i] += row[i];
        probes[i] += 1;
      }
    }
    std::vector<float> sums;
    std::vector<float> probes;
  };

  // The last twentieth of a block's tokens are probes, and as many of the others.
  static bool is_probe(int32_t place, int32_t tokens) {
    return place >= tokens - std::max(1, tokens / 20) || place % 20 == 19;
  }

  // Compresses the tokens up to `end`, and begins the next block.
  void compress(int32_t end, Cache& cache) {
    const int32_t count = end - done_;
    for (size_t at = 0; at < cache.heads.size(); ++at) {
      std::vector<float> means;
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        means.push_back(saliencies_[at].sums[i] / std::max(1.0f, saliencies_[at].probes[i]));
      }
      const auto others = static_cast<int32_t>((1 - salient_) * count + 1e-9);
      const std::vector<int32_t> salient = largest(means, count - others);
      std::vector<int32_t> rest;
      for (int32_t i = 0; i < count; ++i) {
        if (!std::ranges::binary_search(salient, i)) rest.push_back(i);
      }
      HeadCache& head = cache.heads[at];
      const std::vector<float> scales = channel_scales(head.values, count);
      round_class(salient, bits_, scales, head);
      round_class(rest, low_bits_, scales, head);
      saliencies_[at] = Saliency(gap_);
      const int64_t width = cache.shape.head_dim;
      bytes_ += 2 * packed_bytes(std::ssize(salient) * width, bits_) +
                2 * packed_bytes(std::ssize(rest) * width, low_bits_) +
                (2 * width + count) * kGroupBytes + width * kHalfBytes + packed_bytes(count, 1);
    }
    done_ = end;
  }

  // Returns: the roots of the channels' largest sizes.
  std::vector<float> channel_scales(const Rows& values, int32_t count) const {
    std::vector<float> scales(static_cast<size_t>(values.cols()));
    for (int32_t i = done_; i < done_ + count; ++i) {
      for (size_t c = 0; c < scales.size(); ++c) {
        scales[c] = std::max(scales[c], std::fabs(values.row(i)[c]));
      }
    }
    for (float& scale : scales) scale = scale > 0 ? std::sqrt(scale) : 1;
    return scales;
  }

  // Rounds tokens of a block to one number of bits.
  void round_class(const std::vector<int32_t>& tokens, int bits, const std::vector<float>& scales,
                   HeadCache& head) const {
    Rows keys(head.keys.cols());
    for (const int32_t token : tokens) keys.add(head.keys.row(done_ + token));
    round_channels(keys.view(), std::max<int64_t>(1, keys.rows()), bits);
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::ranges::copy(keys.row(static_cast<int64_t>(i)),
                        head.keys.row(done_ + tokens[i]).begin());
      const std::span<float> value = head.values.row(done_ + tokens[i]);
      for (size_t c = 0; c < scales.size(); ++c) value[c] /= scales[c];
      round_to_levels(value, bits);
      for (size_t c = 0; c < scales.size(); ++c) value[c] *= scales[c];
    }
  }

  double salient_ = 0;  // share of a block's tokens
  int bits_ = 0;
  int low_bits_ = 0;
  int32_t gap_ = 0;  // generated tokens of a block
  int32_t kv_heads_ = 0;
  int32_t done_ = 0;                  // tokens that are compressed
  int64_t bytes_ = 0;                 // of them
  std::vector<Saliency> saliencies_;  // of each head's next block
};

}  // namespace tessera::lab
