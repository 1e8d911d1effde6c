#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tessera {

// A bounded queue from many sender threads to one receiver thread. Pushing never blocks: a full
// channel refuses, so the sender can report this to its client at once. Allocates memory only in
// the constructor.
template <class T>
class Channel {
 public:
  explicit Channel(size_t capacity) : ring_(capacity) {
    TESSERA_CHECK(capacity > 0, "a channel holds at least one message");
  }

  // Any thread.
  // Returns: false, with `value` unchanged, if the channel is full or closed.
  [[nodiscard]] bool try_push(T&& value) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || count_ == ring_.size()) {
        return false;
      }
      ring_[(head_ + count_) % ring_.size()] = std::move(value);
      ++count_;
    }
    arrived_.notify_one();
    return true;
  }

  // Receiver only. Appends all messages to `out`, oldest first. Never blocks.
  void drain(std::vector<T>& out) {
    const std::lock_guard lock(mutex_);
    for (; count_ > 0; --count_) {
      out.push_back(std::exchange(ring_[head_], T{}));
      head_ = (head_ + 1) % ring_.size();
    }
  }

  // Receiver only. Sleeps until there is a message or the channel is closed.
  // Returns: false if the channel is closed and empty.
  bool wait() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return count_ > 0 || closed_; });
    return count_ > 0;
  }

  // Any thread. Refuses further messages; messages in the channel can still be drained.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    arrived_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<T> ring_;
  size_t head_ = 0;
  size_t count_ = 0;
  bool closed_ = false;
};

}  // namespace tessera
