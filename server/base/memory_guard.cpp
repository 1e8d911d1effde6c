#include "server/base/memory_guard.h"

#include <fmt/format.h>
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <utility>

#include "engine/retry_after.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kInterval{250};
constexpr std::chrono::seconds kRetry{2};
constexpr double kResume = 0.95;                  // of the limit: requests are taken again
constexpr std::size_t kWorthTrimming = 16 << 20;  // free heap in bytes

}  // namespace

int64_t anonymous_memory() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  int64_t of_files = 0;
  file >> total >> resident >> of_files;
  return (resident - of_files) * sysconf(_SC_PAGESIZE);
}

int64_t memory_limit_of_group() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t bytes = 0;
    if (file >> bytes && bytes < (int64_t{1} << 60)) {  // "max", or a huge number: no limit
      return bytes / 10 * 9;
    }
  }
  return 0;
}

MemoryGuard::MemoryGuard(int64_t limit, std::function<bool()> idle)
    : limit_(limit), idle_(std::move(idle)) {
  look();
  thread_ = std::thread([this] { run(); });
}

MemoryGuard::~MemoryGuard() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

absl::Status MemoryGuard::check() const {
  if (!above_) {
    return absl::OkStatus();
  }
  return with_retry_after(absl::ResourceExhaustedError(fmt::format(
                              "the server uses {} MiB of memory, and takes requests up to {} MiB",
                              resident_.load() >> 20, limit_ >> 20)),
                          kRetry);
}

void MemoryGuard::add(HeldMemory part) {
  const std::lock_guard lock(mutex_);
  parts_.push_back(std::move(part));
}

std::vector<HeldMemory> MemoryGuard::parts() const {
  const std::lock_guard lock(mutex_);
  return parts_;
}

std::vector<std::pair<std::string, int64_t>> MemoryGuard::bytes_by_part() const {
  std::vector<std::pair<std::string, int64_t>> bytes;
  for (const HeldMemory& part : parts()) {
    bytes.emplace_back(part.name, part.bytes());
  }
  return bytes;
}

void MemoryGuard::look() {
  resident_ = anonymous_memory();
  if (limit_ > 0 && (resident_ > limit_ || above_)) {
    for (const HeldMemory& part : parts()) {
      if (part.shrink != nullptr) {
        part.shrink();
      }
    }
  }
  const bool near =
      limit_ > 0 && static_cast<double>(resident_) >= kResume * static_cast<double>(limit_);
  if ((near || idle_()) && mallinfo2().fordblks >= kWorthTrimming && malloc_trim(0) == 1) {
    ++trims_;
    resident_ = anonymous_memory();
  }
  const bool above = limit_ > 0 && (resident_ > limit_ || (above_ && near));
  if (above != above_.exchange(above)) {
    if (above) {
      spdlog::warn("memory: {} MiB, above the limit of {} MiB; requests are refused",
                   resident_.load() >> 20, limit_ >> 20);
    } else {
      spdlog::info("memory: {} MiB; requests are taken again", resident_.load() >> 20);
    }
  }
}

void MemoryGuard::run() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kInterval, [this] { return stopping_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

}  // namespace tessera
