#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "kernels/backend.h"

namespace tessera {

// Recorded ops of a forward pass, started together again and again: a CUDA graph. Only the plan
// that they read (tokens, positions, sequences, scorings) changes between starts. Everything else
// that they refer to, memory and its shapes, stays the same.
class Recording {
 public:
  virtual ~Recording() = default;

  // Starts the ops in order, as if they had been called with `plan`. Reads `plan` before it
  // returns. Allocates nothing.
  // Requires: `plan` has the recorded number of bytes, in the same arrangement.
  virtual void start(std::span<const std::byte> plan, Stream stream) const = 0;
};

// The plan at recording determines the number of blocks that an op starts. It therefore has at
// least as many sequences as any later plan, each of the greatest possible length. Everything
// optional that an op can do (close a group, give scores), it does in that plan. A later plan with
// fewer sequences ends with some of count 0; the results of their rows are not read.
struct RecordArgs {
  std::span<const std::byte> plan;  // host memory that contains all spans that the ops read
  // Calls the ops on record()'s stream. It calls no op that waits or returns numbers to the host.
  // It may call sums over ranks if Communicator::records_sums(). It is called twice. The first call
  // runs with a plan of zeroes, so that all loading and selection of kernels is done. The second
  // call is recorded.
  std::function<void()> ops;
};

// Type of Backend::record. Allocates: call it at program start.
using RecordOps = std::unique_ptr<Recording>(const RecordArgs& args, Stream stream);

}  // namespace tessera
