#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "engine/token_grammar.h"
#include "kernels/ops/sampling.h"

namespace tessera {

// A number of even tokens above 2, then the end of sequence: token 1 or 2. It allocates nothing
// when it is followed.
class EvenGrammar final : public TokenGrammar {
 public:
  explicit EvenGrammar(int32_t length, int32_t end = 1) : length_(length), end_(end) {}

  static bool allowed(int64_t token) { return token > 2 && token % 2 == 0; }

  std::unique_ptr<TokenConstraint> begin() const override {
    return std::make_unique<Constraint>(length_, uint32_t{1} << end_);
  }

 private:
  class Constraint final : public TokenConstraint {
   public:
    Constraint(int32_t left, uint32_t end) : left_(left), end_(end) {}

    void fill(std::span<uint32_t> mask) override {
      constexpr uint32_t kEven = 0x55555555;
      std::fill(mask.begin(), mask.end(), left_ > 0 ? kEven : 0);
      mask[0] = left_ > 0 ? kEven & ~7u : end_;
      if (broken_) {
        mask[0] = 0;
      }
    }
    void accept(int32_t token) override {
      broken_ = broken_ || !allowed(token) || left_ == 0;
      --left_;
    }
    void take_back(int32_t count) override { left_ += count; }

   private:
    int32_t left_;
    const uint32_t end_;
    bool broken_ = false;
  };

  const int32_t length_;
  const int32_t end_;
};

}  // namespace tessera
