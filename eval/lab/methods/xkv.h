#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "eval/lab/before_rope.h"
#include "eval/lab/directions.h"
#include "eval/lab/layer_rows.h"
#include "eval/lab/levels.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera::lab {

// Projects the prompt's keys before RoPE and its values onto the leading singular vectors of a
// group of layers side by side (xKV, section 3). Generated tokens stay as they are.
class Xkv final : public Cloned<Xkv, BeforeRope> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Xkv>();
    method->layers_ = settings.integer("layers", 4);
    method->key_rank_ = settings.number("key_rank", 0.125);
    method->value_rank_ = settings.number("value_rank", 0.1875);
    return method;
  }

  void fill(const Prompt& prompt, Cache& cache) override {
    add_all_tokens(prompt, cache);
    tokens_ = prompt.size();
    const int64_t groups = div_ceil(prompt.shape.layers, layers_);
    model_->pool().parallel_for(2 * groups, 1, [&](int64_t begin, int64_t end, int /*worker*/) {
      for (int64_t i = begin; i < end; ++i) {
        share(prompt, static_cast<int32_t>(i / 2) * layers_, i % 2 == 0 ? Part::keys : Part::values,
              cache);
      }
    });
  }

  // Counts both factors of each group in f16, and generated tokens in f16.
  int64_t bytes(const Cache& cache) const override {
    const Shape& shape = cache.shape;
    int64_t numbers =
        (cache.entries() - int64_t{tokens_} * std::ssize(cache.heads)) * 2 * shape.head_dim;
    for (int32_t first = 0; first < shape.layers; first += layers_) {
      for (const Part part : {Part::keys, Part::values}) {
        const int64_t width = width_of_group(shape, first);
        numbers += std::min(rank(part, width), int64_t{tokens_}) * (tokens_ + width);
      }
    }
    return numbers * kHalfBytes;
  }

 private:
  int64_t width_of_group(const Shape& shape, int32_t first) const {
    return int64_t{std::min(layers_, shape.layers - first)} * shape.kv_heads * shape.head_dim;
  }
  int64_t rank(Part part, int64_t width) const {
    const double share = part == Part::keys ? key_rank_ : value_rank_;
    return std::max<int64_t>(1, std::llround(share * static_cast<double>(width)));
  }

  // Projects one part of the layers from `first` on.
  void share(const Prompt& prompt, int32_t first, Part part, Cache& cache) const {
    const int64_t width = width_of_group(prompt.shape, first);
    const int64_t of_layer = int64_t{prompt.shape.kv_heads} * prompt.shape.head_dim;
    Rows together(prompt.size(), width);
    for (int64_t at = 0; at < width; at += of_layer) {
      const LayerPrompt& from = prompt.layers[static_cast<size_t>(first + at / of_layer)];
      const Rows& rows = part == Part::keys ? from.keys_before : from.values;
      for (int64_t i = 0; i < rows.rows(); ++i) {
        std::ranges::copy(rows.row(i), together.row(i).begin() + at);
      }
    }
    project_onto(leading_directions(std::as_const(together).view(), rank(part, width)),
                 together.view());
    for (int64_t at = 0; at < width; at += of_layer) {
      const auto layer = static_cast<int32_t>(first + at / of_layer);
      Rows own(of_layer);
      own.add(together.columns(at, of_layer));
      if (part == Part::keys) apply_rope(layer, 0, own);
      set_layer_rows(cache, layer, part, 0, own);
    }
  }

  int32_t layers_ = 0;   // of a group
  double key_rank_ = 0;  // share of the group's width
  double value_rank_ = 0;
  int32_t tokens_ = 0;  // of the prompt
};

}  // namespace tessera::lab
