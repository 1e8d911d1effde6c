#include "base/memory_mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

namespace tessera {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// A thread populates this much at a time.
constexpr size_t kStripe = 32 * kHugePage;
constexpr size_t kMaxThreads = 32;

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // of Linux 5.14; the C library may be older
#endif

bool populate(std::byte* data, size_t bytes) {
  while (madvise(data, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINVAL) {  // an older kernel: a write makes a page resident
      constexpr size_t kPage = 4096;
      for (size_t at = 0; at < bytes; at += kPage) {
        volatile std::byte& first = data[at];
        const std::byte kept = first;
        first = kept;
      }
      return true;
    }
    if (errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

}  // namespace

MemoryMapping::MemoryMapping(int64_t bytes) {
  if (bytes <= 0) {
    return;
  }
  const size_t mapped = static_cast<size_t>(bytes) + kHugePage;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return;
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapping);
  mapping_ = mapping;
  mapped_bytes_ = mapped;
  bytes_ = static_cast<size_t>(bytes);
  data_ = static_cast<std::byte*>(mapping) + (kHugePage - start % kHugePage) % kHugePage;
  madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // optional: slower without
}

MemoryMapping::~MemoryMapping() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapped_bytes_);
  }
}

bool MemoryMapping::populate() {
  const size_t stripes = (bytes_ + kStripe - 1) / kStripe;
  std::atomic<size_t> next = 0;
  std::atomic<bool> refused = false;
  const auto work = [&] {
    for (size_t stripe = next++; stripe < stripes && !refused; stripe = next++) {
      const size_t begin = stripe * kStripe;
      if (!tessera::populate(data_ + begin, std::min(kStripe, bytes_ - begin))) {
        refused = true;
      }
    }
  };
  std::vector<std::thread> threads(
      std::min<size_t>({stripes, std::thread::hardware_concurrency(), kMaxThreads}));
  for (std::thread& thread : threads) {
    thread = std::thread(work);
  }
  work();
  for (std::thread& thread : threads) {
    thread.join();
  }
  return !refused;
}

}  // namespace tessera
