#include "server/grpc/unread_messages.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr int64_t kBytesPerSecond = 256 << 10;
constexpr std::chrono::milliseconds kLeastInterval{10};  // between looks at the messages

}  // namespace

UnreadMessages::UnreadMessages(std::chrono::milliseconds timeout)
    : timeout_(timeout), thread_([this] { run(); }) {}

UnreadMessages::~UnreadMessages() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void UnreadMessages::begin(grpc::ServerContextBase& context, std::size_t bytes) {
  const auto due =
      Clock::now() + timeout_ + std::chrono::seconds(static_cast<int64_t>(bytes) / kBytesPerSecond);
  const std::lock_guard lock(mutex_);
  due_[&context] = due;
}

void UnreadMessages::end(grpc::ServerContextBase& context) {
  const std::lock_guard lock(mutex_);
  due_.erase(&context);
}

void UnreadMessages::run() {
  std::unique_lock lock(mutex_);
  const auto interval = std::max(timeout_ / 4, kLeastInterval);
  while (!stopped_.wait_for(lock, interval, [this] { return stopping_; })) {
    cancel_overdue();
  }
}

// Requires: mutex_ is held, so each context is still valid.
void UnreadMessages::cancel_overdue() {
  const Clock::time_point now = Clock::now();
  while (true) {
    const auto overdue = std::find_if(due_.begin(), due_.end(),
                                      [&](const auto& message) { return message.second <= now; });
    if (overdue == due_.end()) {
      return;
    }
    grpc::ServerContextBase& context = *overdue->first;
    due_.erase(overdue);
    context.TryCancel();
  }
}

}  // namespace tessera
