#include "server/generation/prefix_move.h"

#include <utility>

#include "base/status_macros.h"
#include "server/generation/finish_status.h"

namespace tessera {

class PrefixMove::Sink final : public EventSink {
 public:
  explicit Sink(std::shared_ptr<Waker> waker) : waker_(std::move(waker)) {}

  void on_token(int32_t /*token*/) override {}
  void on_finish(const Finish& finish) override {
    {
      const std::lock_guard lock(mutex_);
      finish_ = finish;
    }
    waker_->wake();
  }
  std::optional<Finish> finish() const {
    const std::lock_guard lock(mutex_);
    return finish_;
  }

 private:
  const std::shared_ptr<Waker> waker_;
  mutable std::mutex mutex_;
  std::optional<Finish> finish_;
};

absl::StatusOr<PrefixMove> PrefixMove::begin(Service& service, GenerateRequest request,
                                             std::shared_ptr<PrefixTransfer> transfer,
                                             std::shared_ptr<Waker> waker) {
  TESSERA_ASSIGN_OR_RETURN(ByteBudget::Share room,
                           take_bytes(service.budget(), 2 * transfer->bytes.size()));
  transfer->status = absl::FailedPreconditionError(
      "no prefix is moved: prefix-cache is off, or cache_prompt is false");
  const auto block_tokens = static_cast<std::size_t>(service.engine().stats().prefix_block_tokens);
  transfer->block.tokens.reserve(block_tokens);
  request.cache.prefetch = true;
  request.transfer = transfer;
  PrefixMove move(service, std::move(transfer), std::make_shared<Sink>(std::move(waker)),
                  std::move(room));
  TESSERA_ASSIGN_OR_RETURN(Accepted accepted, service.generate(std::move(request), {move.sink_}));
  move.id_ = accepted.generations.front().id;
  move.prompt_ = std::move(accepted.prompt);
  return move;
}

PrefixMove::~PrefixMove() {
  if (sink_ != nullptr && !sink_->finish().has_value() && id_ != 0) {
    service_->cancel(id_);
  }
}

absl::StatusOr<const PrefixTransfer*> PrefixMove::result() const {
  const std::optional<Finish> finish = sink_->finish();
  if (!finish.has_value()) {
    return nullptr;
  }
  TESSERA_RETURN_IF_ERROR(status_of(*finish));
  TESSERA_RETURN_IF_ERROR(transfer_->status);
  return transfer_.get();
}

}  // namespace tessera
