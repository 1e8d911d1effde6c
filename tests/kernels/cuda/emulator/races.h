#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tests/kernels/cuda/emulator/emulation.h"

namespace tessera::simt::emulation {

// Finds data races of kernels: two accesses to one byte by threads that no barrier orders, at least
// one of them a write and at least one not atomic. For each byte it remembers the last write and
// up to two reads since, with their threads and the barriers that these had passed. These are the
// epochs of FastTrack (Flanagan and Freund 2009). Barriers nest, so two numbers replace its vector
// clocks.
//
// Two accesses are ordered by sync_cluster() within a cluster, sync_block() within a block,
// sync_warp() within a warp, and the end of a kernel. Shuffles, ballots and matrix products order
// nothing (CUDA C++ Programming Guide, "Warp Vote Functions"). Clusters of a kernel are unordered.
// Not thread-safe.
class Races {
 public:
  enum class Kind : uint8_t { read, write, atomic };

  static Races& of_process();

  // Notes an access of the thread that the emulation runs now. `code`: return address of the
  // instruction. No effect on the host, and for memory on the thread's own stack.
  void note(const void* address, size_t bytes, Kind kind, const void* code);

  // Number of different pairs of instructions that raced. Each was reported to stderr.
  int64_t found() const { return static_cast<int64_t>(reported_.size()); }
  // Returns: found(), which is 0 from now on.
  int64_t forget();

 private:
  struct Access {
    int64_t scope = 0;  // kernel, or for shared memory the cluster; others are over
    int64_t cluster = 0;
    int64_t cluster_epoch = 0;
    int64_t block_epoch = 0;
    int64_t warp_epoch = 0;
    const void* code = nullptr;
    int32_t block = 0;
    int32_t thread = 0;
    Kind kind = Kind::read;
  };
  struct Byte {
    Access write;
    Access reads[2];
  };
  static constexpr uintptr_t kPage = 1024;  // bytes
  struct Page {
    Byte bytes[kPage];
  };

  Byte& at(uintptr_t address);
  static bool ordered(const Access& before, const Access& now);
  void compare(const Access& before, const Access& now, uintptr_t address);
  void note_byte(const Access& now, uintptr_t address);

  int64_t launch_ = 0;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::vector<std::unique_ptr<Page>> spare_;
  uintptr_t last_page_ = 0;
  Page* last_ = nullptr;
  std::vector<std::pair<const void*, const void*>> reported_;
  bool reports_ = false;  // its accesses are not a kernel's
};

}  // namespace tessera::simt::emulation
