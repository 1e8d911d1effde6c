#include "kernels/cpu/pages/prefix_block_bytes.h"

#include <cstring>

#include "base/check.h"
#include "kernels/cpu/pages/free_list.h"

namespace tessera {
namespace {

int64_t rows_of(const KvPool& pool) {
  return int64_t{pool.pages.layers} * pool.pages.kv_heads;
}

int64_t count_bytes(const KvPool& pool) {
  return rows_of(pool) * int64_t{sizeof(int32_t)};
}

int32_t count_in(std::span<const std::byte> bytes, int64_t row) {
  int32_t count = 0;
  std::memcpy(&count, bytes.data() + row * int64_t{sizeof(count)}, sizeof(count));
  return count;
}

}  // namespace

int64_t max_prefix_block_bytes(const KvPool& pool) {
  return count_bytes(pool) + rows_of(pool) * pool.prefix_block_pages * pool.pages.page_bytes;
}

int64_t prefix_block_bytes(const KvPool& pool, const PrefixBlock& block) {
  int64_t pages = 0;
  for (int64_t row = 0; row < rows_of(pool); ++row) {
    pages += block.pages_of(pool, pool.prefix_block_table(block.handle, row));
  }
  return count_bytes(pool) + pages * pool.pages.page_bytes;
}

void write_prefix_block(const KvPool& pool, const PrefixBlock& block, std::span<std::byte> bytes) {
  check_prefix_block(pool, block.handle, block.tier);
  const auto page_bytes = static_cast<size_t>(pool.pages.page_bytes);
  std::byte* counts = bytes.data();
  std::byte* to = counts + count_bytes(pool);
  for (int64_t row = 0; row < rows_of(pool); ++row) {
    TESSERA_CHECK(pool.window_of(row) == 0, "a block of a layer with a window has no bytes");
    const int32_t* table = pool.prefix_block_table(block.handle, row);
    const int32_t count = block.pages_of(pool, table);
    std::memcpy(counts + row * int64_t{sizeof(count)}, &count, sizeof(count));
    for (int32_t i = 0; i < count; ++i, to += page_bytes) {
      TESSERA_CHECK(table[i] != kNoPage, "the handle holds no prefix block of this format");
      std::memcpy(to, pool.pages.page(table[i]), page_bytes);
    }
  }
  TESSERA_CHECK(to == bytes.data() + bytes.size(), "a prefix block of other bytes");
}

int64_t pages_in_bytes(const KvPool& pool, const PrefixBlock& block,
                       std::span<const std::byte> bytes) {
  if (std::ssize(bytes) < count_bytes(pool)) {
    return -1;
  }
  int64_t pages = 0;
  for (int64_t row = 0; row < rows_of(pool); ++row) {
    const int32_t count = count_in(bytes, row);
    const bool fits = block.section
                          ? count >= 0 && count <= pool.prefix_block_pages
                          : count == pool.prefix_block_pages_of(block.tier, block.short_tokens);
    if (!fits) {
      return -1;
    }
    pages += count;
  }
  return count_bytes(pool) + pages * pool.pages.page_bytes == std::ssize(bytes) ? pages : -1;
}

void read_prefix_block(const KvPool& pool, const PrefixBlock& block,
                       std::span<const std::byte> bytes) {
  check_prefix_block(pool, block.handle, block.tier);
  TESSERA_CHECK(pages_in_bytes(pool, block, bytes) >= 0, "bytes of another pool's block");
  const auto page_bytes = static_cast<size_t>(pool.pages.page_bytes);
  const FreeList free_list(pool);
  const std::byte* from = bytes.data() + count_bytes(pool);
  for (int64_t row = 0; row < rows_of(pool); ++row) {
    int32_t* table = pool.prefix_block_table(block.handle, row);
    const int32_t count = count_in(bytes, row);
    for (int32_t i = 0; i < count; ++i, from += page_bytes) {
      TESSERA_CHECK(table[i] == kNoPage, "the handle holds a prefix block");
      table[i] = free_list.take();
      std::memcpy(pool.pages.page(table[i]), from, page_bytes);
    }
  }
}

}  // namespace tessera
