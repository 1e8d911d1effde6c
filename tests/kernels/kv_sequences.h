#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/kv/kv_arena.h"
#include "tests/kernels/device.h"

namespace tessera {

// Formats that are sparse on one side. The other side keeps all channels, as f16 or as codes.
inline constexpr KvFormat kKeysAlone{16, 16, 125, 1000};
inline constexpr KvFormat kValuesAlone{16, 4, 1000, 1};

// Named formats, at least two of each kind, and the two above.
inline const std::vector<KvFormat>& named_formats() {
  static const std::vector<KvFormat> kFormats{
      kKvF32,  kKvF16,  kKvFp8,     kKvK8V8,    kKvK8V4,    kKvK4V4,     kKvK4V2,  kKvK4V1,
      kKvK4V8, kKvK2V4, kKvK6V4R,   kKvK4V4R,   kKvK4V2R,   kKvK4V3R,    kKvK3V3R, kKvK3V2R,
      kKvS50,  kKvS70,  kKvS50K4V4, kKvS70K4V4, kKeysAlone, kValuesAlone};
  return kFormats;
}

// Returns: an arena whose pages and residual buffers begin as NaN in every word: old content must
// not show.
inline std::unique_ptr<KvArena> make_arena_of_nan(const KvArenaShape& shape) {
  auto arena = KvArena::make(shape);
  std::memset(arena->view().arena, 0xff, static_cast<size_t>(shape.arena_bytes()));
  std::memset(arena->view().residuals, 0xff,
              static_cast<size_t>(shape.slots * shape.slot_residual_bytes()));
  return arena;
}

// Memory for dense groups, aligned as ops need it.
class DenseGroups {
 public:
  explicit DenseGroups(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)), lines_((bytes_ + sizeof(Line) - 1) / sizeof(Line)) {}
  std::byte* data() { return lines_.empty() ? nullptr : lines_.data()->bytes; }
  std::span<std::byte> bytes() { return {data(), bytes_}; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  size_t bytes_;
  std::vector<Line> lines_;
};

// A span of one sequence's next tokens. keys, values: [count, kv_heads * head_dim], not owned.
struct KvChunk {
  int32_t slot = 0;
  int32_t context = 0;
  int32_t count = 0;
  const float* keys = nullptr;
  const float* values = nullptr;
  KvTiers tiers;
};

// Takes the pages that the chunks need and stores the chunks as one step of `layer`.
inline void store_step(const Device& device, KvArena& arena, const std::vector<KvChunk>& chunks,
                       int32_t layer) {
  const Backend& backend = *device.backend;
  const KvPagesView pages = arena.view();
  const int64_t cols = int64_t{pages.kv_heads} * pages.head_dim;
  std::vector<SequenceSpan> spans;
  std::vector<KvGrowth> grown;
  std::vector<float> keys, values;
  int64_t groups = 0;
  for (const KvChunk& chunk : chunks) {
    spans.push_back({chunk.slot, static_cast<int32_t>(std::ssize(keys) / cols), chunk.count,
                     chunk.context, chunk.tiers});
    const SequenceSpan& span = spans.back();
    grown.push_back(
        {chunk.slot, chunk.tiers, kKvGroup * (span.closed_after() - span.closed_before())});
    groups += dense_groups(span);
    keys.insert(keys.end(), chunk.keys, chunk.keys + chunk.count * cols);
    values.insert(values.end(), chunk.values, chunk.values + chunk.count * cols);
  }
  const int64_t rows = std::ssize(keys) / cols;
  DenseGroups dense(groups * pages.kv_heads * pages.residual_layout.page_bytes);
  backend.kv_resize({.pool = arena.pool(), .released = {}, .grown = grown}, device.stream);
  backend.kv_store({.keys = {keys.data(), rows, cols, cols},
                    .values = {values.data(), rows, cols, cols},
                    .sequences = spans,
                    .pages = pages,
                    .layer = layer,
                    .dense = dense.bytes()},
                   device.stream);
  device.wait(device.stream);
}
inline void store_step(const Backend& backend, ThreadPool& pool, KvArena& arena,
                       const std::vector<KvChunk>& chunks, int32_t layer) {
  store_step({.name = backend.name, .backend = &backend, .stream = pool.stream()}, arena, chunks,
             layer);
}

// An arena whose memory a device can reach.
class ReachedArena {
 public:
  ReachedArena(const Device& device, const KvArenaShape& shape)
      : device_(device), arena_(KvArena::make(shape)) {
    const KvPagesView pages = arena_->view();
    device.reach(pages.arena, static_cast<size_t>(shape.arena_bytes()));
    device.reach(pages.residuals, static_cast<size_t>(shape.slots * shape.slot_residual_bytes()));
    device.reach(pages.token_scores,
                 static_cast<size_t>(shape.slots * shape.slot_token_score_bytes()));
    device.reach(pages.query_sums, static_cast<size_t>(shape.slots * shape.slot_query_sum_bytes()));
  }
  ReachedArena(const ReachedArena&) = delete;
  ReachedArena& operator=(const ReachedArena&) = delete;
  ~ReachedArena() {
    const KvPagesView pages = arena_->view();
    for (void* memory :
         {static_cast<void*>(pages.arena), static_cast<void*>(pages.residuals),
          static_cast<void*>(pages.token_scores), static_cast<void*>(pages.query_sums)}) {
      device_.leave(memory);
    }
  }

  KvArena& operator*() const { return *arena_; }
  KvArena* operator->() const { return arena_.get(); }

 private:
  const Device& device_;
  const std::unique_ptr<KvArena> arena_;
};

// Returns: bytes of the row's high tier without slack, then those of the open group, for a sequence
// of `length` tokens.
inline std::vector<std::byte> row_bytes(const KvArena& arena, int64_t row, KvTiers tiers,
                                        int32_t length) {
  const KvPagesView pages = arena.view();
  std::vector<std::byte> bytes;
  const auto take = [&](const KvPageLayout& layout, const std::byte* page, int64_t tile) {
    const auto add = [&](int64_t offset, int64_t count) {
      bytes.insert(bytes.end(), page + offset, page + offset + count);
    };
    add(layout.keys_offset(tile), layout.key_tile_bytes());
    add(layout.key_scales_offset(tile), layout.key_scale_tile_bytes());
    add(layout.key_zeros_offset(tile), layout.key_zero_tile_bytes());
    add(layout.values_offset(tile), layout.value_tile_bytes());
    add(layout.value_scales_offset(tile), layout.value_scale_tile_bytes());
    add(layout.value_zeros_offset(tile), layout.value_zero_tile_bytes());
  };
  const KvPageLayout& layout = pages.layouts[tiers.high];
  const int32_t stored = pages.rows[row].high;
  for (int32_t token = 0; token < stored; token += KvPageLayout::kKeyTile) {
    take(layout, pages.page(pages.table(row)[token / layout.capacity]),
         token % layout.capacity / KvPageLayout::kKeyTile);
  }
  // Only the open group of the residual buffer: later places hold tokens of the group before.
  const KvPageLayout& residual = pages.residual_layout;
  const int64_t element = residual.format.key_bits / 8;
  for (int32_t token = 0; token < length % kKvGroup; ++token) {
    const int32_t tile = token / KvPageLayout::kKeyTile;
    const int32_t place = token % KvPageLayout::kKeyTile;
    for (int32_t channel = 0; channel < pages.head_dim; ++channel) {
      const std::byte* key =
          pages.residual(row) + residual.keys_offset(tile) + residual.key_offset(place, channel);
      const std::byte* value = pages.residual(row) + residual.values_offset(tile) +
                               residual.value_offset(place, channel);
      bytes.insert(bytes.end(), key, key + element);
      bytes.insert(bytes.end(), value, value + element);
    }
  }
  return bytes;
}

}  // namespace tessera
