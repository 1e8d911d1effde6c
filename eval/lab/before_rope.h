#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/lab/cache.h"
#include "eval/lab/method.h"

namespace tessera::lab {

// A method that holds keys as they are before RoPE. It remembers the model of its prompt, which
// outlives it.
class BeforeRope : public Method {
 public:
  std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                    Cache& cache) override {
    model_ = &model;
    return Method::compute_prompt(model, tokens, cache);
  }

 protected:
  // Applies RoPE to rows of keys at positions from `first` on, or takes it back. A row has any
  // number of heads.
  void apply_rope(int32_t layer, int32_t first, Rows& keys) const {
    for (int64_t i = 0; i < keys.rows(); ++i) {
      model_->rotate(layer, first + static_cast<int32_t>(i), keys.row(i));
    }
  }
  void take_rope_back(int32_t layer, int32_t first, Rows& keys) const {
    for (int64_t i = 0; i < keys.rows(); ++i) {
      model_->rotate_back(layer, first + static_cast<int32_t>(i), keys.row(i));
    }
  }

  Model* model_ = nullptr;
};

}  // namespace tessera::lab
