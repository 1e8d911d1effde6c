#include "engine/ranks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/request_bytes.h"

namespace tessera {
namespace {

class SilentSink final : public EventSink {
 public:
  void on_token(int32_t /*token*/) override {}
  void on_finish(const Finish& /*finish*/) override {}
};

// Fixed-size part of the broadcast, sent in every step.
struct Head {
  std::chrono::steady_clock::time_point now;
  int64_t ends = 0;
  int64_t messages = 0;
  int64_t bytes = 0;  // of the serialised messages
};

// Header of a serialised message. At most one id is not 0. If `first` is not 0, a request follows.
struct MessageIds {
  RequestId first = 0;
  RequestId cancelled = 0;
};

}  // namespace

Ranks::Ranks(Communicator* communicator)
    : communicator_(communicator),
      null_sink_(std::make_shared<SilentSink>()),
      digests_(static_cast<size_t>(count())) {}

void Ranks::broadcast(StepInputs& inputs) {
  if (count() == 1) {
    return;
  }
  if (leads()) {
    write(inputs);
  }
  Head head{inputs.now, inputs.ends ? 1 : 0, std::ssize(inputs.messages), std::ssize(bytes_)};
  communicator_->broadcast(std::as_writable_bytes(std::span(&head, 1)));
  if (head.bytes > 0) {
    bytes_.resize(static_cast<size_t>(head.bytes));
    communicator_->broadcast(bytes_);
  }
  if (!leads()) {
    inputs.now = head.now;
    inputs.ends = head.ends != 0;
    inputs.messages.resize(static_cast<size_t>(head.messages));
    read(inputs);
  }
}

void Ranks::broadcast(std::span<uint32_t> masks) {
  if (count() > 1) {
    communicator_->broadcast(std::as_writable_bytes(masks));
  }
}

void Ranks::write(const StepInputs& inputs) {
  bytes_.clear();
  for (const Message& message : inputs.messages) {
    const MessageIds ids{message.samples.empty() ? 0 : message.samples.front()->request_id(),
                         message.cancelled};
    const auto raw = std::as_bytes(std::span(&ids, 1));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    if (ids.first != 0) {
      append_request(*message.request, bytes_);
    }
  }
}

void Ranks::read(StepInputs& inputs) const {
  std::span<const std::byte> left(bytes_);
  for (Message& message : inputs.messages) {
    MessageIds ids;
    TESSERA_CHECK(left.size() >= sizeof(ids), "the step inputs end too early");
    std::copy_n(left.begin(), sizeof(ids), std::as_writable_bytes(std::span(&ids, 1)).begin());
    left = left.subspan(sizeof(ids));
    message.first_id = ids.first;
    message.cancelled = ids.cancelled;
    if (ids.first != 0) {
      message.request = std::make_unique<EngineRequest>(take_request(left, null_sink_));
    }
  }
}

void Ranks::verify_identical(uint64_t digest, int64_t step) {
  if (count() == 1) {
    return;
  }
  const auto own = static_cast<int64_t>(digest);
  communicator_->all_gather({&own, 1}, digests_);
  for (size_t rank = 1; rank < digests_.size(); ++rank) {
    TESSERA_CHECK(
        digests_[rank] == digests_[0],
        absl::StrCat("rank ", rank, " plans a different step ", step, " than rank 0").c_str());
  }
}

absl::Status verify_identical_traits(Communicator& ranks, std::span<const RankTrait> traits) {
  std::vector<int64_t> own;
  for (const RankTrait& trait : traits) {
    own.push_back(static_cast<int64_t>(trait.hash));
  }
  std::vector<int64_t> all(own.size() * static_cast<size_t>(ranks.ranks()));
  ranks.all_gather(own, all);
  for (size_t i = 0; i < traits.size(); ++i) {
    for (int32_t rank = 1; rank < ranks.ranks(); ++rank) {
      if (all[static_cast<size_t>(rank) * own.size() + i] != all[i]) {
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", rank, " and rank 0 differ in ", std::string(traits[i].name),
                         ": it must be the same on all ranks of a model"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
