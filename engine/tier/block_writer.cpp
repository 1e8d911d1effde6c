#include "engine/tier/block_writer.h"

#include <chrono>
#include <utility>

namespace tessera {
namespace {

constexpr std::chrono::seconds kSyncInterval{1};

}  // namespace

BlockWriter::BlockWriter(std::span<BlockStore* const> stores, int64_t bytes, int64_t block_bytes,
                         int32_t block_tokens)
    : stores_(stores.begin(), stores.end()),
      buffers_(bytes, block_bytes, block_tokens),
      queue_(buffers_.size()),
      thread_([this] { run(); }) {}

BlockWriter::~BlockWriter() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

// ---- the engine's thread

BlockBuffer* BlockWriter::begin(Time until) {
  std::unique_lock lock(mutex_);
  BlockBuffer* buffer = buffers_.take();
  while (buffer == nullptr && std::chrono::steady_clock::now() < until) {
    written_.wait_until(lock, until);
    buffer = buffers_.take();
  }
  counting_.dropped += buffer == nullptr ? 1 : 0;
  return buffer;
}

void BlockWriter::put(BlockBuffer* buffer) {
  {
    const std::lock_guard lock(mutex_);
    queue_[(head_ + count_) % queue_.size()] = buffer;
    ++count_;
  }
  changed_.notify_one();
}

bool BlockWriter::half_full() const {
  const std::lock_guard lock(mutex_);
  return 2 * count_ >= queue_.size();
}

void BlockWriter::clear() {
  {
    const std::lock_guard lock(mutex_);
    clears_ = true;
    forgotten_ = count_;
  }
  changed_.notify_one();
}

bool BlockWriter::clearing() const {
  const std::lock_guard lock(mutex_);
  return clears_;
}

void BlockWriter::drain(Time until) {
  std::unique_lock lock(mutex_);
  syncs_now_ = true;
  changed_.notify_one();
  written_.wait_until(lock, until,
                      [this] { return count_ == 0 && !busy_ && !clears_ && !syncs_now_; });
}

int64_t BlockWriter::give_up() {
  const std::lock_guard lock(mutex_);
  const auto forgotten = static_cast<int64_t>(count_ - forgotten_);
  forgotten_ = count_;
  return forgotten;
}

BlockWriter::Stats BlockWriter::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = counting_;
  stats.queued = static_cast<int64_t>(count_) + (busy_ ? 1 : 0);
  return stats;
}

// ---- the writer's thread

void BlockWriter::run() {
  std::unique_lock lock(mutex_);
  auto synced = std::chrono::steady_clock::now();
  for (bool ends = false; !ends;) {
    changed_.wait_for(lock, kSyncInterval,
                      [this] { return count_ > 0 || clears_ || syncs_now_ || stops_; });
    if (clears_) {
      busy_ = true;
      lock.unlock();
      for (BlockStore* const store : stores_) {
        store->clear();
      }
      lock.lock();
      busy_ = false;
      clears_ = false;
    } else if (count_ > 0) {
      write(lock);
    }
    const auto now = std::chrono::steady_clock::now();
    if (unsynced_ && (count_ == 0 || now - synced >= kSyncInterval)) {
      unsynced_ = false;
      synced = now;
      busy_ = true;
      lock.unlock();
      for (BlockStore* const store : stores_) {
        store->sync();
      }
      lock.lock();
      busy_ = false;
    }
    const bool idle = count_ == 0 && !clears_ && !unsynced_;
    syncs_now_ = syncs_now_ && !idle;
    ends = stops_ && idle;
    written_.notify_all();
  }
}

void BlockWriter::write(std::unique_lock<std::mutex>& lock) {
  BlockBuffer* const buffer = queue_[head_];
  head_ = (head_ + 1) % queue_.size();
  --count_;
  const bool forgotten = forgotten_ > 0;
  forgotten_ -= forgotten ? 1 : 0;
  busy_ = true;
  lock.unlock();
  for (BlockStore* const store : stores_) {
    // The store counts its errors. A block that it refuses is computed again when it is needed.
    if (!forgotten) {
      store->put(buffer->block()).IgnoreError();
    }
  }
  lock.lock();
  busy_ = false;
  unsynced_ = true;
  counting_.blocks += forgotten ? 0 : 1;
  counting_.bytes += forgotten ? 0 : static_cast<int64_t>(buffer->pages);
  buffers_.give_back(buffer);
}

}  // namespace tessera
