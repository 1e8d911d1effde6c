#include "base/check.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/pages/pool_plan.h"
#include "kernels/cuda/pages/tile_writer.h"

namespace tessera::cuda {
namespace {

using namespace simt;

// Demotes one row of a prefix block, by one thread block: tile by tile into `scratch`, which holds
// page_bytes bytes, then page by page. A page of the new format holds at least as many tokens as
// one of the old format. So when a page of the row is overwritten, its tokens have already been
// read. kTo: kind of the new format.
template <FormatKind kTo>
class RowDemotion {
 public:
  TESSERA_DEVICE RowDemotion(const KvPool& pool, const PrefixBlock& prefix_block, uint8_t tier,
                             int64_t head, std::byte* scratch)
      : pool_(pool),
        from_(pool.pages.layouts[prefix_block.tier]),
        to_(as_kind<kTo>(pool.pages.layouts[tier])),
        table_(pool.prefix_block_table(prefix_block.handle, head)),
        scratch_(scratch) {}

  TESSERA_DEVICE void run(TileMemory& memory) const {
    for (int32_t page = 0; page * to_.capacity < pool_.prefix_block_tokens; ++page) {
      for (int32_t first = 0; first < to_.capacity; first += kTileTokens) {
        decode_tile(page * to_.capacity + first, memory);
        put_tile(token_place(scratch_, first), memory);
      }
      copy_bytes(scratch_, pool_.pages.page(table_[page]), to_.used_bytes(), block_team());
      sync_block();
    }
  }

 private:
  // Decodes the row's tokens [first, first + kTileTokens).
  TESSERA_DEVICE void decode_tile(int32_t first, TileMemory& memory) const {
    each_own_token([&](int32_t i) {
      const int32_t id = table_[(first + i) / from_.capacity];
      simt::check(id >= 0 && pool_.owners[id] == 1);
      decode(from_, token_place(pool_.pages.page(id), (first + i) % from_.capacity),
             memory.tokens[i]);
    });
    sync_warp();
  }

  TESSERA_DEVICE void put_tile(const TokenPlace& to, TileMemory& memory) const {
    if constexpr (kTo == FormatKind::sparse) {
      each_own_token([&](int32_t i) {
        put_sparse(to_, {to.page, to.tile, i}, memory.tokens[i], nullptr, memory.sparse[warp()]);
      });
    } else {
      find_own_ranges(to_, memory);
      sync_block();
      put_code_tile(to_, to, memory);
    }
    sync_block();
  }

  const KvPool& pool_;
  const KvPageLayout& from_;
  const KvPageLayout to_;
  const int32_t* table_;
  std::byte* scratch_;
};

// One thread block for each KV head of all layers; it takes the prefix blocks one after the other.
// kTo: kind of the tier's format.
template <FormatKind kTo>
TESSERA_KERNEL(kTileThreads, 4)
demote_kernel(KvPool pool, Plan<PrefixBlock> prefix_blocks, uint8_t tier, std::byte* scratch) {
  if (pool.window_of(block_x()) > 0) {
    return;
  }
  for (int32_t i = 0; i < prefix_blocks.count; ++i) {
    RowDemotion<kTo>(pool, prefix_blocks.data[i], tier, block_x(),
                     scratch + block_x() * pool.pages.page_bytes)
        .run(shared<TileMemory>());
  }
}

// Releases the entries beyond the first `kept` of each row of the prefix blocks.
TESSERA_KERNEL(kPoolThreads)
recycle_kernel(KvPool pool, Plan<PrefixBlock> prefix_blocks, int32_t kept) {
  BlockFreeList free_list(pool, shared<BlockFreeList::Memory>());
  const int64_t of_prefix_block = slot_rows(pool) * pool.prefix_block_pages;
  const int64_t entries = prefix_blocks.count * of_prefix_block;
  for (int64_t first = 0; first < entries; first += kPoolThreads) {
    const int64_t i = first + thread();
    int32_t* entry = nullptr;
    const int64_t head = i % of_prefix_block / pool.prefix_block_pages;
    if (i < entries && i % pool.prefix_block_pages >= kept && pool.window_of(head) == 0) {
      entry = pool.prefix_block_table(prefix_blocks.data[i / of_prefix_block].handle, 0) +
              i % of_prefix_block;
    }
    free_list.release_page(entry);
  }
  free_list.finish();
}

void check_args(const KvDemoteArgs& args, Stream stream) {
  const KvPool& pool = args.pool;
  const KvPageLayout& to = pool.pages.layouts[args.tier];
  for (const PrefixBlock& prefix_block : args.prefix_blocks) {
    check_prefix_block(pool, prefix_block.handle, prefix_block.tier);
    check_prefix_block(pool, prefix_block.handle, args.tier);
    const KvPageLayout& from = pool.pages.layouts[prefix_block.tier];
    TESSERA_CHECK(prefix_block.tier != args.tier && from.capacity <= to.capacity,
                  "kv_demote: to a format that is no denser");
    TESSERA_CHECK(!to.format.is_floats(), "kv_demote: to a format of codes or a sparse one");
    TESSERA_CHECK(to.head_dim <= kMaxDecodedDim,
                  "the CUDA backend serves head dimensions up to 128");
  }
  TESSERA_CHECK(kv_demote_scratch_bytes(pool.pages, stream) <= std::ssize(args.scratch),
                "kv_demote: scratch is too small");
}

}  // namespace

int64_t kv_demote_scratch_bytes(const KvPagesView& pages, Stream) {
  return int64_t{pages.layers} * pages.kv_heads * pages.page_bytes;
}

void kv_demote(const KvDemoteArgs& args, Stream stream) {
  check_args(args, stream);
  if (args.prefix_blocks.empty()) {
    return;
  }
  const Plan<PrefixBlock> prefix_blocks = plan_of(args.prefix_blocks, stream);
  launch(stream,
         {.grid_x = static_cast<int32_t>(slot_rows(args.pool)),
          .threads = kTileThreads,
          .shared_bytes = sizeof(TileMemory)},
         args.pool.pages.layouts[args.tier].format.is_sparse() ? demote_kernel<FormatKind::sparse>
                                                               : demote_kernel<FormatKind::codes>,
         args.pool, prefix_blocks, args.tier, args.scratch.data());
  launch(stream, kOneBlock, recycle_kernel, args.pool, prefix_blocks,
         args.pool.prefix_block_pages_of(args.tier));
}

}  // namespace tessera::cuda
