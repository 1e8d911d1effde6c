#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/tier/block_store.h"

namespace tessera {

// A block on its way between the pool and the stores. It has room for the largest one.
struct BlockBuffer {
  BlockId id;
  std::vector<int32_t> tokens;
  std::span<std::byte> room;
  size_t pages = 0;   // bytes of `room` in use
  uint64_t name = 0;  // see StoredBlock

  StoredBlock block() const { return {id, tokens, room.first(pages), name}; }
};

// A fixed number of buffers, allocated at the start. The system gives their memory as it is
// written. Not thread-safe.
class BlockBuffers {
 public:
  // bytes: of all buffers, as far as these limits allow it.
  static constexpr int64_t kLeast = 4;
  static constexpr int64_t kMost = 256;
  BlockBuffers(int64_t bytes, int64_t block_bytes, int32_t block_tokens);
  static constexpr int64_t count(int64_t bytes, int64_t block_bytes) {
    const int64_t wanted = bytes / block_bytes;
    return wanted < kLeast ? kLeast : wanted > kMost ? kMost : wanted;
  }

  BlockBuffer* take();  // Returns: null if all are in use.
  void give_back(BlockBuffer* buffer) { free_.push_back(buffer); }
  size_t size() const { return buffers_.size(); }
  bool all_free() const { return free_.size() == buffers_.size(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::vector<BlockBuffer> buffers_;
  std::vector<BlockBuffer*> free_;
};

}  // namespace tessera
