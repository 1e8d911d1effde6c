#include "kernels/cuda/simt/block.h"
#include "tests/kernels/cuda/simt_kernels.h"

namespace tessera {
namespace {

using namespace simt;

// Loads and stores the fragments element by element, as simt.h describes them.
TESSERA_KERNEL(32) multiply_f16_kernel(const f16* a, const f16* b, float* d) {
  const int32_t g = lane() / 4;
  const int32_t t = lane() % 4;
  uint32_t of_a[4];
  uint32_t of_b[2];
  float of_d[4];
  for (int32_t i = 0; i < 4; ++i) {
    const f16* pair = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
    of_a[i] = pair[0].bits | static_cast<uint32_t>(pair[1].bits) << 16;
    of_d[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  }
  for (int32_t i = 0; i < 2; ++i) {
    const f16* pair = b + (2 * t + i * 8) * 8 + g;
    of_b[i] = pair[0].bits | static_cast<uint32_t>(pair[8].bits) << 16;
  }
  mma_f16(of_d, of_a, of_b);
  for (int32_t i = 0; i < 4; ++i) {
    d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = of_d[i];
  }
}

TESSERA_KERNEL(32) multiply_bytes_kernel(const uint8_t* a, const int8_t* b, int32_t* d) {
  const int32_t g = lane() / 4;
  const int32_t t = lane() % 4;
  uint32_t of_a[4] = {};
  uint32_t of_b[2] = {};
  int32_t of_d[4];
  for (int32_t i = 0; i < 4; ++i) {
    const uint8_t* four = a + (g + i % 2 * 8) * 32 + 4 * t + i / 2 * 16;
    for (int32_t e = 0; e < 4; ++e) {
      of_a[i] |= static_cast<uint32_t>(four[e]) << (8 * e);
    }
    of_d[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  }
  for (int32_t i = 0; i < 2; ++i) {
    const int8_t* four = b + (4 * t + i * 16) * 8 + g;
    for (int32_t e = 0; e < 4; ++e) {
      of_b[i] |= static_cast<uint32_t>(static_cast<uint8_t>(four[8 * e])) << (8 * e);
    }
  }
  mma_u8s8(of_d, of_a, of_b);
  for (int32_t i = 0; i < 4; ++i) {
    d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = of_d[i];
  }
}

TESSERA_KERNEL(1024) prefix_sum_kernel(const int32_t* counts, int32_t* firsts) {
  const Place place = block_place(counts[thread()], shared<OfWarps<int32_t>>());
  firsts[thread()] = place.first;
  if (thread() == threads() - 1) {
    firsts[threads()] = place.all;
  }
}

TESSERA_KERNEL(32) look_at_words_kernel(const uint32_t* words, Words32* results) {
  const uint32_t word = words[lane()];
  results->ballots[lane()] = ballot((word & 1) != 0);
  results->counts[lane()] = popcount(word);
  results->sums[lane()] = add_f16(word, pack_f16(1.0f, 1.0f));
}

// rows, results: [groups].
TESSERA_KERNEL(32) transpose_kernel(const Rows32* rows, int32_t groups, Fragments32* results) {
  constexpr int32_t kStages = 3;
  auto& stages = shared<Rows32[kStages]>();
  const auto copy = [&](int32_t group) {
    if (group < groups) {
      copy_ahead(stages[group % kStages].of[lane()], rows[group].of[lane()]);
    }
    end_copy_group();
  };
  for (int32_t group = 0; group < kStages - 1; ++group) {
    copy(group);
  }
  for (int32_t group = 0; group < groups; ++group) {
    wait_for_copies<kStages - 2>();
    sync_warp();
    copy(group + kStages - 1);
    const Words words = load_transposed(stages[group % kStages].of[lane()]);
    store_words(results[group].of[lane()], words);
  }
}

TESSERA_KERNEL(1024) release_kernel(uint16_t* owners, int32_t count, uint16_t* before) {
  before[block_x() * threads() + thread()] = subtract_owner(&owners[thread() % count]);
}

struct Meeting {
  int32_t own[kMeeting];
  int32_t given[kMeeting];
};

TESSERA_KERNEL(kMeeting) meet_kernel(Neighbours* neighbours) {
  Meeting& memory = shared<Meeting>();
  const int32_t own = (block_y() * grid_x() + block_x()) * threads() + thread();
  memory.own[thread()] = own;
  sync_cluster();
  const int32_t next = (cluster_rank() + 1) % cluster_blocks();
  *in_block(&memory.given[thread()], next) = own;
  const int32_t read = *in_block(&memory.own[thread()], next);
  sync_cluster();
  neighbours[own] = {cluster_rank(), cluster_blocks(), read, memory.given[thread()]};
}

}  // namespace

void multiply_f16(const f16* a, const f16* b, float* d, Stream stream) {
  launch(stream, {}, multiply_f16_kernel, a, b, d);
}

void multiply_bytes(const uint8_t* a, const int8_t* b, int32_t* d, Stream stream) {
  launch(stream, {}, multiply_bytes_kernel, a, b, d);
}

void prefix_sum(const int32_t* counts, int32_t count, int32_t* firsts, Stream stream) {
  launch(stream, {.threads = count, .shared_bytes = sizeof(OfWarps<int32_t>)}, prefix_sum_kernel,
         counts, firsts);
}

void look_at_words(const uint32_t* words, Words32* results, Stream stream) {
  launch(stream, {}, look_at_words_kernel, words, results);
}

void transpose(const Rows32* rows, int32_t groups, Fragments32* results, Stream stream) {
  launch(stream, {.shared_bytes = 3 * sizeof(Rows32)}, transpose_kernel, rows, groups, results);
}

void release_all(uint16_t* owners, int32_t count, int32_t blocks, int32_t threads, uint16_t* before,
                 Stream stream) {
  launch(stream, {.grid_x = blocks, .threads = threads}, release_kernel, owners, count, before);
}

int32_t largest_cluster(Stream stream) {
  return limits(stream).cluster;
}

void meet_neighbours(const MeetingShape& shape, Neighbours* neighbours, Stream stream) {
  launch(stream,
         {.grid_x = shape.columns,
          .grid_y = shape.clusters * shape.cluster,
          .threads = shape.threads,
          .shared_bytes = sizeof(Meeting),
          .cluster = shape.cluster},
         meet_kernel, neighbours);
}

}  // namespace tessera
