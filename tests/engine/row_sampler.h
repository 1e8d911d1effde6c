#pragma once

#include <algorithm>
#include <span>

#include "engine/sampler.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {

// Samples one row at a time, on the CPU.
class RowSampler {
 public:
  explicit RowSampler(int32_t vocab, const Backend& backend = cpu_backend(CpuIsa::scalar))
      : sampler_(Sampler::create(vocab, 1, backend, threads_.stream()).value()) {}

  absl::StatusOr<Sampled> sample(std::span<const float> logits, const Choice& choice) {
    std::copy(logits.begin(), logits.end(), sampler_.begin(1).row(0).begin());
    sampler_.add(0, choice);
    sampler_.finish(1);
    return sampler_.chosen(0);
  }

 private:
  ThreadPool threads_{1};
  Sampler sampler_;
};

}  // namespace tessera
