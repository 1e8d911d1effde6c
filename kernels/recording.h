#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "kernels/backend.h"

namespace tessera {

// Ops of a forward pass that a backend has noted, to be started all at once, again and again: a
// CUDA graph. Only what they read of the plan (tokens, positions, sequences, scorings) changes from
// one start to the next. What they name otherwise, memory and its shapes, stays as it was.
class Recording {
 public:
  virtual ~Recording() = default;

  // Starts them in their order, as if they had been called with `plan`: as many bytes as were
  // recorded, in the same arrangement, read before this returns. Allocates nothing.
  virtual void start(std::span<const std::byte> plan, Stream stream) const = 0;
};

// How many blocks an op starts follows from the plan that it is recorded with. So that plan has as
// many sequences as any later one, each as long as the longest may be, and says of what an op may
// or may not do (close a group, give scores) that it does. A later plan with fewer sequences ends
// with some of count 0, whose rows compute what nobody reads.
struct RecordArgs {
  std::span<const std::byte> plan;  // host memory in which all spans lie that the ops read
  // Calls the ops on the stream that record() has, and no op that waits or gives the host numbers;
  // sums over ranks too, where Communicator::records_sums().
  // It is called twice: once to run with a plan of zeroes, so that nothing is loaded or chosen for
  // the first time when it counts, and once to be noted.
  std::function<void()> ops;
};

// Backend::record. Allocates: it is for the start of a program.
using RecordOps = std::unique_ptr<Recording>(const RecordArgs& args, Stream stream);

}  // namespace tessera
