#include <cstring>

#include "base/check.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/pages/key_sketch.h"
#include "kernels/cpu/pages/kv_ops.h"
#include "kernels/cpu/pages/token_ops.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

// Encodes one row of a prefix block again. A page of the new format holds at least as many tokens
// as one of the old format. So when it overwrites a page of the block, the tokens of that page have
// been read.
void encode_row(const TokenOps& ops, const KvDemoteArgs& args, const PrefixBlock& prefix_block,
                int64_t head, std::byte* scratch) {
  const KvPool& pool = args.pool;
  if (pool.window_of(head) > 0) {
    return;
  }
  const KvPagesView& pages = pool.pages;
  const KvPageLayout& from = pages.layouts[prefix_block.tier];
  const KvPageLayout& to = pages.layouts[args.tier];
  const TileShape from_shape(from);
  const TileShape to_shape(to);
  const int32_t* table = pool.prefix_block_table(prefix_block.handle, head);
  for (int32_t token = 0; token < pool.prefix_block_tokens; ++token) {
    ops.demote(from_shape, {pages.page(table[token / from.capacity]), token % from.capacity},
               to_shape, {scratch, token % to.capacity}, nullptr);
    if ((token + 1) % to.capacity == 0) {
      std::byte* const page = pages.page(table[token / to.capacity]);
      std::memcpy(page, scratch, static_cast<size_t>(to.used_bytes()));
      if (has_key_sketch(pages, to)) {
        write_key_sketch(to, to.capacity, page);
      }
    }
  }
}

void recycle(const KvPool& pool, int32_t handle, int32_t kept) {
  const FreeList free_list(pool);
  for (int64_t head = 0; head < int64_t{pool.pages.layers} * pool.pages.kv_heads; ++head) {
    int32_t* table = pool.prefix_block_table(handle, head);
    for (int32_t i = kept;
         pool.window_of(head) == 0 && i < pool.prefix_block_pages && table[i] != kNoPage; ++i) {
      free_list.release_page(table[i]);
      table[i] = kNoPage;
    }
  }
}

void check(const KvDemoteArgs& args) {
  const KvPool& pool = args.pool;
  TESSERA_CHECK(pool.pages.head_dim <= kMaxHeadDim, "kv_demote: too large a head");
  TESSERA_CHECK(args.tier < kMaxKvLayouts && pool.pages.layouts[args.tier].capacity > 0 &&
                    pool.prefix_block_tokens % pool.pages.layouts[args.tier].capacity == 0,
                "kv_demote: prefix blocks do not have this format");
  for (const PrefixBlock& prefix_block : args.prefix_blocks) {
    TESSERA_CHECK(prefix_block.handle >= 0 && prefix_block.handle < pool.prefix_blocks,
                  "kv_demote: no such prefix block");
    TESSERA_CHECK(
        prefix_block.tier != args.tier && pool.pages.layouts[prefix_block.tier].capacity <=
                                              pool.pages.layouts[args.tier].capacity,
        "kv_demote: to a format that is no denser");
    for (int64_t head = 0; head < int64_t{pool.pages.layers} * pool.pages.kv_heads; ++head) {
      const int32_t* table = pool.prefix_block_table(prefix_block.handle, head);
      const bool windowed = pool.window_of(head) > 0;
      for (int32_t i = 0; !windowed && i < pool.prefix_block_pages_of(prefix_block.tier); ++i) {
        TESSERA_CHECK(table[i] != kNoPage && pool.owners[table[i]] == 1,
                      "kv_demote: a page that others hold, or none");
      }
    }
  }
}

int64_t scratch_bytes(const KvPagesView& pages, Stream stream) {
  return ThreadPool::of(stream).threads() * pages.page_bytes;
}

void demote(const TokenOps& ops, const KvDemoteArgs& args, Stream stream) {
  check(args);
  const KvPagesView& pages = args.pool.pages;
  TESSERA_CHECK(pages.head_dim % ops.head_dim_multiple == 0,
                "kv_demote: a head_dim that the scalar backend serves");
  TESSERA_CHECK(scratch_bytes(pages, stream) <= std::ssize(args.scratch),
                "kv_demote: scratch is too small");
  const int64_t heads = int64_t{pages.layers} * pages.kv_heads;
  ThreadPool::of(stream).parallel_for(
      std::ssize(args.prefix_blocks) * heads, 1, [&](int64_t item, int64_t, int thread) {
        encode_row(ops, args, args.prefix_blocks[static_cast<size_t>(item / heads)], item % heads,
                   args.scratch.data() + thread * pages.page_bytes);
      });
  for (const PrefixBlock& prefix_block : args.prefix_blocks) {
    recycle(args.pool, prefix_block.handle, args.pool.prefix_block_pages_of(args.tier));
  }
}

}  // namespace

namespace scalar {
int64_t kv_demote_scratch_bytes(const KvPagesView& pages, Stream stream) {
  return scratch_bytes(pages, stream);
}
void kv_demote(const KvDemoteArgs& args, Stream stream) {
  demote(kTokenOps, args, stream);
}
}  // namespace scalar

namespace avx2 {
void kv_demote(const KvDemoteArgs& args, Stream stream) {
  demote(kTokenOps, args, stream);
}
}  // namespace avx2

namespace avx512 {
void kv_demote(const KvDemoteArgs& args, Stream stream) {
  demote(kTokenOps, args, stream);
}
}  // namespace avx512

}  // namespace tessera
