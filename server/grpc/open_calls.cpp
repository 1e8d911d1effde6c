#include "server/grpc/open_calls.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tessera {
namespace {

constexpr std::size_t kLeastCalls = 32;
constexpr std::size_t kAnonymousShare = 4;  // one of so many

}  // namespace

OpenCalls::Place::Place(Place&& other) noexcept
    : calls_(std::exchange(other.calls_, nullptr)),
      has_caller_(other.has_caller_),
      number_(other.number_) {}

OpenCalls::Place& OpenCalls::Place::operator=(Place&& other) noexcept {
  std::swap(calls_, other.calls_);
  std::swap(has_caller_, other.has_caller_);
  std::swap(number_, other.number_);
  return *this;
}

void OpenCalls::Place::keep() {
  TESSERA_CHECK(calls_ != nullptr, "a call without a place is kept");
  if (!has_caller_) return;  // so one more always gets a place
  const std::lock_guard lock(calls_->mutex_);
  Group& group = calls_->group(has_caller_);
  if (forget(group, number_)) {
    ++group.kept;
    number_ = 0;
  }
}

void OpenCalls::Place::release() {
  if (calls_ == nullptr) {
    return;
  }
  OpenCalls& calls = *std::exchange(calls_, nullptr);
  const std::lock_guard lock(calls.mutex_);
  Group& group = calls.group(has_caller_);
  if (number_ == 0) {
    --group.kept;
  } else {
    forget(group, number_);
  }
}

OpenCalls::OpenCalls(std::size_t bytes) {
  const std::size_t most = std::max(bytes / kGrpcCallBytes, kLeastCalls);
  anonymous_.most = most / kAnonymousShare;
  called_.most = most - anonymous_.most;
}

std::optional<OpenCalls::Place> OpenCalls::take(grpc::ServerContextBase& context, bool has_caller) {
  const std::lock_guard lock(mutex_);
  Group& group = this->group(has_caller);
  if (group.kept + group.waiting.size() >= group.most) {
    if (group.waiting.empty()) {
      return std::nullopt;
    }
    cancel_one(group);
  }
  std::string peer = context.peer();
  ++group.of_peer[peer];
  group.waiting.emplace(++last_, Waiting{&context, std::move(peer)});
  return Place(*this, has_caller, last_);
}

std::size_t OpenCalls::bytes() const {
  const std::lock_guard lock(mutex_);
  return kGrpcCallBytes * (anonymous_.waiting.size() + called_.waiting.size() + called_.kept);
}

// Returns: false if it was cancelled before.
bool OpenCalls::forget(Group& group, std::size_t number) {
  const auto found = group.waiting.find(number);
  if (found == group.waiting.end()) {
    return false;
  }
  const auto peer = group.of_peer.find(found->second.peer);
  if (--peer->second == 0) {
    group.of_peer.erase(peer);
  }
  group.waiting.erase(found);
  return true;
}

// Requires: mutex_ is held, so each context is still valid. There is a call that waits.
void OpenCalls::cancel_one(Group& group) {
  const auto most =
      std::max_element(group.of_peer.begin(), group.of_peer.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto oldest =
      std::find_if(group.waiting.begin(), group.waiting.end(),
                   [&](const auto& waiting) { return waiting.second.peer == most->first; });
  grpc::ServerContextBase& context = *oldest->second.context;
  forget(group, oldest->first);
  context.TryCancel();
}

}  // namespace tessera
