#include "engine/request_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace tessera {
namespace {

// Maximum number of messages in the channel. Every unfinished sequence may have entered and been
// cancelled since the last receive(), and cancellations of ended sequences may still be there.
size_t channel_capacity(int64_t max_inside) {
  return static_cast<size_t>(3 * max_inside) + 1;  // 1: a flush
}

}  // namespace

RequestQueue::RequestQueue(int32_t max_queue, int32_t max_sequences)
    : max_queue_(max_queue), channel_(channel_capacity(int64_t{max_queue} + max_sequences)) {}

absl::Status RequestQueue::push(Message request) {
  const auto& samples = request.samples;
  const std::lock_guard lock(mutex_);
  if (refusing_) {
    return absl::UnavailableError("the engine takes no more requests: it is shutting down");
  }
  if (unfinished_ - running_ + std::ssize(samples) > max_queue_) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", unfinished_ - running_,
                                                     " requests wait, ", max_queue_, " at most"));
  }
  unfinished_ += std::ssize(samples);
  for (const auto& sample : samples) {
    cancellable_.insert(sample->id());
  }
  TESSERA_CHECK(channel_.try_push(std::move(request)), "the channel holds all messages");
  return absl::OkStatus();
}

void RequestQueue::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (cancellable_.erase(id) > 0) {
    // The channel refuses only after close(), and then all sequences end anyway.
    (void)channel_.try_push({.cancelled = id});
  }
}

void RequestQueue::flush() {
  const std::lock_guard lock(mutex_);
  if (!flushing_) {
    flushing_ = channel_.try_push({});
  }
}

void RequestQueue::receive(std::vector<Message>& messages) {
  const std::lock_guard lock(mutex_);
  channel_.drain(messages);
  flushing_ = false;
}

void RequestQueue::refuse() {
  const std::lock_guard lock(mutex_);
  refusing_ = true;
}

void RequestQueue::close() {
  const std::lock_guard lock(mutex_);
  refusing_ = true;
  closed_ = true;
  channel_.close();
}

bool RequestQueue::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

bool RequestQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0;
}

void RequestQueue::set_running(int32_t sequences) {
  const std::lock_guard lock(mutex_);
  running_ = sequences;
}

void RequestQueue::remove(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancellable_.erase(id);
  --unfinished_;
  TESSERA_CHECK(unfinished_ >= 0, "more sequences left than entered");
}

}  // namespace tessera
