#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace tessera {

// The ranks that hold one model's shards together, as seen from one of them. What it does is
// collective: every rank makes the same calls in the same order, and each waits for the others.
// A rank or a link that fails ends the process, and its launcher ends the other ranks: a sum that
// lacks a part is of no use to anybody.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int32_t rank() const = 0;  // in [0, ranks())
  virtual int32_t ranks() const = 0;

  // numbers[i] becomes the sum of all ranks' numbers[i], the same bits on each.
  // numbers: as many on every rank, in the memory of the backend that the stream is of
  virtual void all_reduce_sum(std::span<float> numbers, Stream stream) = 0;
};

}  // namespace tessera
