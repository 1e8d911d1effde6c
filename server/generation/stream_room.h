#pragma once

#include <cstddef>

#include "server/base/byte_budget.h"

namespace tessera {

// Bytes of a streamed answer's events that wait for the client. A first part is counted with the
// answer (answer_bytes()); a client that reads slower than the engine generates needs more. That is
// taken from the budget, so a slow client keeps its answer as long as the others leave room. Not
// thread-safe.
class StreamRoom {
 public:
  // `budget`: not owned; null: without a bound.
  explicit StreamRoom(ByteBudget* budget) : budget_(budget) {}

  // Counts bytes that begin to wait.
  // Returns: false, with nothing counted, if the budget has no room for them.
  bool add(std::size_t bytes);

  // Counts bytes that wait no more. The budget gets its bytes back when none wait.
  void remove(std::size_t bytes);

 private:
  ByteBudget* budget_;
  ByteBudget::Share share_;
  std::size_t used_ = 0;
};

}  // namespace tessera
