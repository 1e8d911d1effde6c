#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "eval/lab/levels.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// Holds keys by channel and values by token in few bits, and the newest tokens as they are (KIVI,
// algorithm 1). Keys leave the residual together when it is full, values one by one.
class Kivi final : public Cloned<Kivi> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Kivi>();
    method->bits_ = settings.integer("bits", 2);
    method->group_ = settings.integer("group", 32);
    method->residual_ = settings.integer("residual", 128);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    keys_to(prompt.size() - prompt.size() % residual_, cache);
    values_to(std::max(0, prompt.size() - residual_), cache);
  }

  void after_token(Cache& cache) override {
    if (cache.tokens - keys_ >= residual_) keys_to(keys_ + residual_, cache);
    values_to(std::max(values_, cache.tokens - residual_), cache);
  }

  // Counts levels, the least number and the step of each group in f16, and the residual in f16.
  int64_t bytes(const Cache& cache) const override {
    const int64_t width = cache.shape.head_dim;
    const int64_t of_keys = packed_bytes(keys_ * width, bits_) +
                            div_ceil(keys_, group_) * width * kGroupBytes +
                            (cache.tokens - keys_) * width * kHalfBytes;
    const int64_t of_values = packed_bytes(values_ * width, bits_) +
                              values_ * div_ceil(width, group_) * kGroupBytes +
                              (cache.tokens - values_) * width * kHalfBytes;
    return std::ssize(cache.heads) * (of_keys + of_values);
  }

 private:
  void keys_to(int32_t end, Cache& cache) {
    for (HeadCache& head : cache.heads) {
      round_channels(head.keys.view().rows_from(keys_, end - keys_), group_, bits_);
    }
    keys_ = end;
  }
  void values_to(int32_t end, Cache& cache) {
    for (HeadCache& head : cache.heads) {
      round_tokens(head.values.view().rows_from(values_, end - values_), group_, bits_);
    }
    values_ = end;
  }

  int bits_ = 0;
  int32_t group_ = 0;     // tokens of a channel, or channels of a token
  int32_t residual_ = 0;  // a multiple of the group
  int32_t keys_ = 0;      // tokens whose keys are quantised
  int32_t values_ = 0;
};

}  // namespace tessera::lab
