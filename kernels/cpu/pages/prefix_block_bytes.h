#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kv/kv_pool.h"

namespace tessera {

// Prefix blocks as bytes, in the form in which attention reads their pages. So a block that leaves
// the pool and comes back has the same bits. For each row, all layers and KV heads in order, the
// number of its pages; then the pages.
//
// All functions work on pools in host memory. Rows of layers with a window are not served.

// Returns: an upper bound of the bytes of one prefix block, in any format.
int64_t max_prefix_block_bytes(const KvPool& pool);

// Returns: the bytes of a block.
// Requires: the handle's block holds pages.
int64_t prefix_block_bytes(const KvPool& pool, const PrefixBlock& block);

// Copies a block out of the pool.
// Requires: bytes.size() is prefix_block_bytes().
void write_prefix_block(const KvPool& pool, const PrefixBlock& block, std::span<std::byte> bytes);

// Returns: the pages of the block in `bytes`; -1 if these are not the bytes of a block of this
// pool. The bytes may come from anywhere.
int64_t pages_in_bytes(const KvPool& pool, const PrefixBlock& block,
                       std::span<const std::byte> bytes);

// Takes pages and fills them with a block.
// Requires: the handle's block holds no pages; pages_in_bytes() pages are free.
void read_prefix_block(const KvPool& pool, const PrefixBlock& block,
                       std::span<const std::byte> bytes);

}  // namespace tessera
