#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/request_queue.h"
#include "kernels/communicator.h"

namespace tessera {

// Inputs of one step, besides the engine's state. Identical on all ranks.
struct StepInputs {
  std::chrono::steady_clock::time_point now;  // by the leader's clock
  bool ends = false;                          // last step: all sequences are cancelled
  std::vector<Message> messages;              // from the leader's request queue
};

// Keeps the engines of all tensor-parallel ranks identical. Each rank has a shard of the model and
// the KV pages of its own heads. Everything else is replicated: sequences, prefix tree, plans,
// sampling. Ranks stay identical because a step is a function of the engine's state and of
// StepInputs:
//   - Rank 0 is the leader, the only rank with clients. It broadcasts its messages and its clock.
//   - Logits have the same bits on every rank.
//   - Page totals, which depend on the heads of a rank, are synchronised (RankTotals).
//
// Without a communicator there is one rank, and no function has an effect. With one, all functions
// that are not const are collective.
class Ranks {
 public:
  explicit Ranks(Communicator* communicator);  // not owned, outlives this; null: one rank

  bool leads() const { return communicator_ == nullptr || communicator_->rank() == 0; }
  int32_t count() const { return communicator_ == nullptr ? 1 : communicator_->ranks(); }

  // Broadcasts the leader's inputs to all ranks. On other ranks the messages have the request but
  // no samples, and its sinks do nothing.
  // Requires: on the leader, each message with samples has its request.
  void broadcast(StepInputs& inputs);

  // Copies the leader's token masks to all ranks.
  // Requires: equal sizes on all ranks.
  void broadcast(std::span<uint32_t> masks);

  // Aborts, with the rank's number, if a rank's digest of the coming step differs from rank 0's.
  void verify_identical(uint64_t digest, int64_t step);

 private:
  void write(const StepInputs& inputs);
  void read(StepInputs& inputs) const;

  Communicator* const communicator_;
  const std::shared_ptr<EventSink> null_sink_;
  std::vector<std::byte> bytes_;  // serialised messages
  std::vector<int64_t> digests_;  // [ranks]
};

// A property that must be identical on all ranks: its name and a hash of its value.
struct RankTrait {
  std::string_view name;
  uint64_t hash = 0;
};

// Checks that all traits are identical on all ranks. Collective.
// Requires: the same names in the same order on every rank.
// Errors, the same on every rank: InvalidArgument names the first trait that differs, and a rank
// whose trait differs from rank 0's.
absl::Status verify_identical_traits(Communicator& ranks, std::span<const RankTrait> traits);

}  // namespace tessera
