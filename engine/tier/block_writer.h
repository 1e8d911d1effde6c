#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/tier/block_buffers.h"
#include "engine/tier/block_store.h"

namespace tessera {

// Writes blocks to all stores behind the engine's steps, on a thread of its own. The queue is a
// fixed number of buffers. When they are all in use, a block is dropped instead of being waited
// for. The stores are synced when the queue is empty, and at least every second.
class BlockWriter {
 public:
  struct Stats {
    int64_t blocks = 0;  // that each store has, or refused
    int64_t bytes = 0;
    int64_t dropped = 0;  // because the queue was full
    int64_t queued = 0;   // or being written
  };
  using Time = std::chrono::steady_clock::time_point;

  // stores: outlive this. bytes: of the queue.
  BlockWriter(std::span<BlockStore* const> stores, int64_t bytes, int64_t block_bytes,
              int32_t block_tokens);
  ~BlockWriter();  // writes all that is queued, and syncs

  // ---- one thread, the engine's
  // Returns: a buffer to fill, which goes to put() next; null if none is free, which counts as a
  // dropped block. It waits for one until that time, for the end of a process.
  BlockBuffer* begin(Time until = Time::min());
  void put(BlockBuffer* buffer);
  bool half_full() const;
  // Empties the stores, and forgets what is queued.
  void clear();
  bool clearing() const;  // the stores are not yet empty
  // Waits until all that is queued is written and synced, or until that time.
  void drain(Time until = Time::max());
  int64_t give_up();  // forgets what is queued. Returns: its blocks.

  Stats stats() const;

 private:
  void run();
  void write(std::unique_lock<std::mutex>& lock);

  const std::vector<BlockStore*> stores_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // the queue has more work
  std::condition_variable written_;  // a buffer is free, or all is written
  BlockBuffers buffers_;
  std::vector<BlockBuffer*> queue_;  // circular
  size_t head_ = 0;
  size_t count_ = 0;
  size_t forgotten_ = 0;  // first ones in the queue, put before clear()
  bool clears_ = false;
  bool busy_ = false;
  bool unsynced_ = false;
  bool syncs_now_ = false;
  bool stops_ = false;
  Stats counting_;
  std::thread thread_;
};

}  // namespace tessera
