#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "eval/lab/method.h"
#include "eval/lab/model.h"

namespace tessera::lab {

// A sequence whose keys and values a method keeps. A copy is a fork.
class Sequence {
 public:
  // Computes the prompt. `model` outlives this.
  Sequence(Model& model, const Method& method, std::span<const int32_t> prompt);
  Sequence(const Sequence& other);
  Sequence& operator=(const Sequence&) = delete;

  // Stores and computes one more token.
  void add(int32_t token);

  const std::vector<float>& logits() const { return logits_; }  // [vocab], after the last token
  const Cache& cache() const { return cache_; }
  int64_t bytes() const { return method_->bytes(cache_); }

 private:
  Model& model_;
  std::unique_ptr<Method> method_;
  Cache cache_;
  std::vector<float> logits_;
};

}  // namespace tessera::lab
