#include "kernels/check.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/pages/pool_plan.h"
#include "kernels/cuda/pages/token_codec.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / kWarp;
constexpr int32_t kTile = KvPageLayout::kKeyTile;

// Of a block.
struct DemotionMemory {
  TokenRanges ranges[kTile];
  SparseMemory sparse[kWarps];
};

// One row of a unit, by a block: a tile at a time into `scratch`, of a page's bytes. A page of the
// new format holds no fewer tokens than one of the former, so when it is written over one of the
// unit's pages, the tokens of that one have been read.
class RowDemotion {
 public:
  TESSERA_DEVICE RowDemotion(const KvPool& pool, const KvUnit& unit, uint8_t tier, int64_t head,
                             std::byte* scratch)
      : pool_(pool),
        from_(pool.pages.layouts[unit.tier]),
        to_(pool.pages.layouts[tier]),
        table_(pool.unit_table(unit.handle, head)),
        scratch_(scratch) {}

  TESSERA_DEVICE void run(DemotionMemory& memory) const {
    for (int32_t page = 0; page * to_.capacity < pool_.unit_tokens; ++page) {
      for (int32_t first = 0; first < to_.capacity; first += kTile) {
        demote_tile(page * to_.capacity + first, token_place(scratch_, first), memory);
      }
      copy_bytes(scratch_, pool_.pages.page(table_[page]), to_.used_bytes(), block_team());
      sync_block();
    }
  }

 private:
  TESSERA_DEVICE StoredToken token(int32_t index) const {
    const int32_t id = table_[index / from_.capacity];
    simt::check(id >= 0 && pool_.owners[id] == 1);
    return {from_, token_place(pool_.pages.page(id), index % from_.capacity)};
  }

  TESSERA_DEVICE void demote_tile(int32_t first, const TokenPlace& to,
                                  DemotionMemory& memory) const {
    if (to_.format.is_sparse()) {
      for (int32_t i = warp(); i < kTile; i += kWarps) {
        put_sparse(to_, {to.page, to.tile, i}, token(first + i), nullptr, memory.sparse[warp()]);
      }
      return sync_block();
    }
    for (int32_t i = warp(); i < kTile; i += kWarps) {
      const TokenRanges of_token = warp_ranges(to_.format, to_.head_dim, token(first + i));
      if (lane() == 0) {
        memory.ranges[i] = of_token;
      }
    }
    sync_block();
    put_code_tile(
        to_, to, [&](int32_t i) { return token(first + i); },
        [&](int32_t i) { return memory.ranges[i]; }, block_team());
    sync_block();
  }

  const KvPool& pool_;
  const KvPageLayout& from_;
  const KvPageLayout& to_;
  const int32_t* table_;
  std::byte* scratch_;
};

// A block for each head of all layers, which takes the units one after the other.
TESSERA_KERNEL(kThreads)
demote_kernel(KvPool pool, Plan<KvUnit> units, uint8_t tier, std::byte* scratch) {
  for (int32_t i = 0; i < units.count; ++i) {
    RowDemotion(pool, units.data[i], tier, block_x(), scratch + block_x() * pool.pages.page_bytes)
        .run(shared<DemotionMemory>());
  }
}

// Entries beyond the first `kept` of each of the units' rows.
TESSERA_KERNEL(kPoolThreads) recycle_kernel(KvPool pool, Plan<KvUnit> units, int32_t kept) {
  BlockFreeList free_list(pool, shared<BlockFreeList::Memory>());
  const int64_t of_unit = slot_rows(pool) * pool.unit_pages;
  const int64_t entries = units.count * of_unit;
  for (int64_t first = 0; first < entries; first += kPoolThreads) {
    const int64_t i = first + thread();
    int32_t* entry = nullptr;
    if (i < entries && i % pool.unit_pages >= kept) {
      entry = pool.unit_table(units.data[i / of_unit].handle, 0) + i % of_unit;
    }
    free_list.let_go(entry);
  }
  free_list.finish();
}

void check_args(const KvDemoteArgs& args, Stream stream) {
  const KvPool& pool = args.pool;
  const KvPageLayout& to = pool.pages.layouts[args.tier];
  for (const KvUnit& unit : args.units) {
    check_unit(pool, unit.handle, unit.tier);
    check_unit(pool, unit.handle, args.tier);
    const KvPageLayout& from = pool.pages.layouts[unit.tier];
    TESSERA_CHECK(unit.tier != args.tier && from.capacity <= to.capacity,
                  "kv_demote: to a format that is no denser");
    TESSERA_CHECK(!to.format.is_floats(), "kv_demote: to a format of codes or a sparse one");
    TESSERA_CHECK(!to.format.is_sparse() || to.head_dim <= kMaxSparseDim,
                  "the CUDA backend serves sparse formats with head dimensions up to 128");
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
  if (args.units.empty()) {
    return;
  }
  const Plan<KvUnit> units = plan_of(args.units, stream);
  launch(stream,
         {.grid_x = static_cast<int32_t>(slot_rows(args.pool)),
          .threads = kThreads,
          .shared_bytes = sizeof(DemotionMemory)},
         demote_kernel, args.pool, units, args.tier, args.scratch.data());
  launch(stream, kOneBlock, recycle_kernel, args.pool, units, args.pool.unit_pages_of(args.tier));
}

}  // namespace tessera::cuda
