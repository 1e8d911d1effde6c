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

// What a step begins with, besides what the engine has inside.
struct StepInputs {
  std::chrono::steady_clock::time_point now;  // by the clock of the rank that leads
  bool ends = false;                          // what is inside is cancelled, and no step follows
  std::vector<Message> messages;              // that came in through its door
};

// The engines of several ranks, as one of them sees the others. Each rank has a shard of the model
// and the KV pages of its own heads; everything else it has whole and does for itself: sequences,
// prefix tree, plans, sampling. They stay alike because a step is a function of what is inside and
// of what comes in: rank 0 leads, clients know it alone, and what came through its door it tells
// the others, with its clock's time; logits have the same bits on every rank, and what heads of
// different ranks decide differently KvCache agrees on (engine/kv/kv_ranks.cpp).
//
// Alone, without a communicator, all of it does nothing. Everything else is collective.
class Ranks {
 public:
  explicit Ranks(Communicator* communicator);  // null: alone; outlives this

  bool leads() const { return communicator_ == nullptr || communicator_->rank() == 0; }
  int32_t count() const { return communicator_ == nullptr ? 1 : communicator_->ranks(); }

  // Rank 0's news become everybody's. There, messages with samples have a request too; on the
  // others they have the request alone, each of its sinks one that does nothing.
  void broadcast(StepInputs& inputs);

  // Aborts, naming the rank, where another has another digest of the step that it is about to do.
  void verify_identical(uint64_t digest, int64_t step);

 private:
  void write(const StepInputs& inputs);
  void read(StepInputs& inputs) const;

  Communicator* const communicator_;
  const std::shared_ptr<EventSink> null_sink_;
  std::vector<std::byte> bytes_;  // of messages
  std::vector<int64_t> digests_;  // [ranks]
};

// What all ranks must have alike, and a hash of it.
struct RankTrait {
  std::string_view name;
  uint64_t hash = 0;
};

// Collective, with the same names on every rank. Errors, the same on each: InvalidArgument names
// the first trait that is not alike, and a rank where it differs from rank 0's.
absl::Status verify_identical_traits(Communicator& ranks, std::span<const RankTrait> traits);

}  // namespace tessera
