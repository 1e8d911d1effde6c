#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// A part of the memory that requests leave behind, such as a cache.
struct HeldMemory {
  std::string name;                // of the metric's label
  std::function<int64_t()> bytes;  // any thread
  std::function<void()> shrink;    // gives about half of it back; null: it cannot
};

// Watches the anonymous memory of the process: weights, KV cache and heap, but no mapped files.
// Refuses requests while it is above a limit, and shrinks the parts that requests left behind until
// it is not: a client that fills them has the others refused for a moment only. Gives free heap
// back to the system (malloc_trim) while the server is idle or near the limit. Thread-safe.
class MemoryGuard {
 public:
  // limit: in bytes; 0: none. idle: tells whether no request is open; called on the guard's thread.
  MemoryGuard(int64_t limit, std::function<bool()> idle);
  ~MemoryGuard();
  MemoryGuard(const MemoryGuard&) = delete;
  MemoryGuard& operator=(const MemoryGuard&) = delete;

  // Any thread. The functions of `part` are called until this ends.
  void add(HeldMemory part);

  // Returns: name and bytes of each part now. Any thread.
  std::vector<std::pair<std::string, int64_t>> bytes_by_part() const;

  // Errors: ResourceExhausted with the time of a retry, while memory is above the limit.
  absl::Status check() const;

  int64_t resident() const { return resident_; }  // bytes at the last look, a quarter second ago
  int64_t limit() const { return limit_; }
  int64_t trims() const { return trims_; }

  // Looks once; the thread does this four times a second.
  void look();

 private:
  std::vector<HeldMemory> parts() const;
  void run();

  const int64_t limit_;
  const std::function<bool()> idle_;
  std::atomic<int64_t> resident_ = 0;
  std::atomic<int64_t> trims_ = 0;
  std::atomic<bool> above_ = false;
  mutable std::mutex mutex_;  // guards the parts and stopping_
  std::vector<HeldMemory> parts_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

// Returns: bytes of anonymous memory of this process.
int64_t anonymous_memory();

// Returns: nine tenths of the memory that the process's control group allows; 0 if there is no
// limit.
int64_t memory_limit_of_group();

}  // namespace tessera
