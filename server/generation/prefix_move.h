#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/prefix_transfer.h"
#include "server/base/waker.h"
#include "server/generation/service.h"

namespace tessera {

// Moves one part of a prefix out of the cache or into it, by a prefetch of its prompt. Used by one
// thread at a time.
class PrefixMove {
 public:
  // A request without an answer. `transfer`: of the part.
  // Requires: `service` outlives this.
  // Errors: those of Service::generate; Unavailable (too many bytes are in use).
  static absl::StatusOr<PrefixMove> begin(Service& service, GenerateRequest request,
                                          std::shared_ptr<PrefixTransfer> transfer,
                                          std::shared_ptr<Waker> waker);
  PrefixMove(PrefixMove&&) = default;
  PrefixMove& operator=(PrefixMove&&) = delete;
  ~PrefixMove();

  // Returns: the transfer when it is complete, null before.
  // Errors: FailedPrecondition, DataLoss, ResourceExhausted of the transfer; Cancelled.
  absl::StatusOr<const PrefixTransfer*> result() const;
  const std::vector<int32_t>& prompt() const { return prompt_; }

 private:
  class Sink;
  PrefixMove(Service& service, std::shared_ptr<PrefixTransfer> transfer, std::shared_ptr<Sink> sink,
             ByteBudget::Share room)
      : service_(&service),
        transfer_(std::move(transfer)),
        sink_(std::move(sink)),
        room_(std::move(room)) {}

  Service* service_;
  std::shared_ptr<PrefixTransfer> transfer_;
  std::shared_ptr<Sink> sink_;  // null: moved from
  ByteBudget::Share room_;
  RequestId id_ = 0;
  std::vector<int32_t> prompt_;
};

}  // namespace tessera
