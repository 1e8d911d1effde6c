#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/prefix_tree.h"
#include "engine/tier/block_buffers.h"
#include "engine/tier/block_key.h"

namespace tessera {

// A part of a prefix as bytes, on its way out of the prefix cache or into it. It goes with a
// prefetch of a prompt that begins with the prefix. The client's thread makes it; the engine's
// thread writes or reads it before the request's on_finish.
//
// bytes: records of whole blocks, in the order of the path. A record is the level and the grade
// (PrefixTree) in a byte each, two bytes of zero, the number of bytes of pages in four, and these
// bytes (kernels/cpu/pages/prefix_block_bytes.h).
struct PrefixTransfer {
  static constexpr size_t kHeadBytes = 8;  // of a record

  bool enters = false;      // into the cache
  int32_t first_block = 0;  // of the records, in the path
  // Of the engine that wrote the records. One that differs refuses them.
  BlockKey fingerprint;
  uint8_t root_level = 0;  // the prompt's own format
  // Room that the engine fills and cuts to size, or what it reads.
  std::vector<std::byte> bytes;
  int32_t blocks = 0;   // that were written, or that the cache has now
  bool more = false;    // the path goes on behind the records
  absl::Status status;  // why nothing, or no more, was moved
  // Scratch of the engine, with its memory from the start: the block on its way, and the path.
  BlockBuffer block;
  std::vector<PrefixTree::Node> path;
};

}  // namespace tessera
