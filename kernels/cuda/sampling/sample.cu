#include <algorithm>

#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/sampling/row_choice.h"
#include "kernels/cuda/sampling/sample.h"
#include "kernels/cuda/simt/simt.h"

// One cluster for each row, whose blocks have at least two warps. The row stays in L2, where the
// model left it (half a megabyte for 128k tokens). Each query on it is one pass; nothing is sorted
// or copied. Sums are of integers, so threads may add in any order. Compiled without fused
// multiply-add, so that floats have the CPU's bits.

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kChangeThreads = 256;
constexpr size_t kMaskPiece = size_t{1} << 17;  // words of masks mirrored at once: 512 KiB

// ---- inspection of a row: all logits finite, the best token, the weight of all tokens

// Returns: rank of a token for comparison: by key; of equal keys the lower id ranks higher.
TESSERA_DEVICE uint64_t rank_of(uint32_t key, int32_t token) {
  return uint64_t{key} << 32 | ~static_cast<uint32_t>(token);
}
TESSERA_DEVICE int32_t token_of(uint64_t rank) {
  return static_cast<int32_t>(~static_cast<uint32_t>(rank));
}

TESSERA_DEVICE int32_t best_token(const MaskedRow& logits, int32_t vocab, RowThreads& row) {
  uint64_t best = 0;
  TESSERA_UNROLL_BY(4)
  for (int32_t i = row.number(); i < vocab; i += row.count()) {
    const uint64_t rank = rank_of(logit_key(logits[i]), i);
    best = rank > best ? rank : best;
  }
  return token_of(row.largest(best));
}

constexpr uint32_t kBrokenKey = ~uint32_t{0};  // of logits that are not finite, above all others

// Writes the best token as the choice, before logits are changed.
TESSERA_KERNEL(kRowThreads)
inspect_kernel(MatrixView<float> logits, const SampleRow* rows, SampledToken* sampled) {
  RowThreads all(shared<RowMemory>());
  const SampleRow& row = rows[block_x()];
  const float* own = logits.data + row.row * logits.stride;
  const auto vocab = static_cast<int32_t>(logits.cols);
  uint64_t best = 0;
  TESSERA_UNROLL_BY(4)
  for (int32_t i = all.number(); i < vocab; i += all.count()) {
    const uint64_t rank = rank_of(is_finite(own[i]) ? logit_key(own[i]) : kBrokenKey, i);
    best = rank > best ? rank : best;
  }
  best = all.largest(best);
  SampledToken found;
  found.token = token_of(best);
  found.logit = own[found.token];
  if (best >> 32 == kBrokenKey) {
    found.status = SampleStatus::not_finite;
  } else {
    found.max_logit = found.logit;
    if (row.wants_logprob) {
      for (int32_t i = all.number(); i < vocab; i += all.count()) {
        found.weight += weight_of(own[i], found.max_logit, 1);
      }
      found.weight = all.total(found.weight);
    }
  }
  if (all.number() == 0) {
    sampled[block_x()] = found;
  }
}

// ---- change and restore logits: one thread for each entry of a piece of SampleArgs::changes

TESSERA_KERNEL(kChangeThreads)
change_kernel(MatrixView<float> logits, const LogitChange* changes, int32_t count, float* before) {
  const int32_t i = block_x() * kChangeThreads + thread();
  if (i < count) {
    float& logit = logits.data[changes[i].row * logits.stride + changes[i].token];
    before[i] = logit;
    logit = changes[i].apply(logit);
  }
}

TESSERA_KERNEL(kChangeThreads)
restore_kernel(MatrixView<float> logits, const LogitChange* changes, int32_t count,
               const float* before) {
  const int32_t i = block_x() * kChangeThreads + thread();
  if (i < count) {
    logits.data[changes[i].row * logits.stride + changes[i].token] = before[i];
  }
}

// Writes the logits of the chosen tokens. Requires: all logits are restored.
TESSERA_KERNEL(kChangeThreads)
logit_kernel(MatrixView<float> logits, const SampleRow* rows, int32_t count,
             SampledToken* sampled) {
  const int32_t i = block_x() * kChangeThreads + thread();
  if (i < count && sampled[i].status == SampleStatus::chosen) {
    sampled[i].logit = logits.data[rows[i].row * logits.stride + sampled[i].token];
  }
}

// Copies a piece of the plan's masks to the scratch, where the choice reads them.
TESSERA_KERNEL(kChangeThreads)
mask_kernel(const uint32_t* piece, int32_t count, uint32_t* masks) {
  const int32_t i = block_x() * kChangeThreads + thread();
  if (i < count) {
    masks[i] = piece[i];
  }
}

// ---- the choice

// kTypical: some row chooses by typical_p, which is rare and half of the kernel's code.
template <bool kTypical>
TESSERA_KERNEL(kRowThreads)
choose_kernel(MatrixView<float> logits, const SampleRow* rows, const uint32_t* masks,
              SampledToken* sampled) {
  const SampleRow& row = rows[block_x()];
  SampledToken& chosen = sampled[block_x()];
  SampleStatus status = chosen.status;
  int32_t token = chosen.token;
  const auto vocab = static_cast<int32_t>(logits.cols);
  const MaskedRow own{logits.data + row.row * logits.stride,
                      row.mask < 0 ? nullptr : masks + row.mask * mask_words(vocab)};
  ChoiceMemory& memory = shared<ChoiceMemory>();
  RowThreads all(memory.row);  // behind its barrier all threads have read `chosen`
  if (status != SampleStatus::chosen) {
    return;
  }
  bool writes = all.rank() == 0;
  if (row.forced >= 0) {
    token = row.forced;
  } else {
    token = row.changes > 0 || row.mask >= 0 ? best_token(own, vocab, all) : token;
    const float best = own[token];
    if (is_finite(best) && row.temperature > 0) {
      token = draw<kTypical>(own, vocab, best, row, {all, memory});
      writes = token != kElsewhere;
    } else if (best == -std::numeric_limits<float>::infinity()) {
      status = SampleStatus::none_left;
    }
  }
  if (writes && thread() == 0) {
    chosen.token = token;
    chosen.status = status;
    chosen.logit = own.logits[token];
  }
}

// Scratch: the logits of changed tokens, then the masks.
int64_t masks_offset(int64_t changes) {
  return round_up(changes * int64_t{sizeof(float)}, 64);
}

}  // namespace

int64_t sample_scratch_bytes(const SampleLimits& limits, Stream) {
  return masks_offset(limits.changes) +
         limits.masks * mask_words(limits.vocab) * int64_t{sizeof(uint32_t)};
}

void sample(const SampleArgs& args, Stream stream) {
  const auto rows = static_cast<int64_t>(args.rows.size());
  sample_by_blocks(args, row_blocks(rows, args.logits.cols, limits(stream)), stream);
}

// Each launch reads one part of the plan, which is mirrored right before it. Mirroring a second
// part may synchronize and invalidate the first.
void sample_by_blocks(const SampleArgs& args, int32_t blocks, Stream stream) {
  const MatrixView<float>& logits = args.logits;
  const auto rows = static_cast<int32_t>(args.rows.size());
  SampledToken* sampled = args.sampled.data();
  const auto cluster_each = [&](size_t shared_bytes) {  // of blocks of at least two warps
    const auto enough = static_cast<int32_t>(
        round_up(div_ceil(logits.cols, int64_t{kThreadTokens} * blocks), 2 * kWarp));
    return LaunchShape{.grid_x = rows,
                       .grid_y = blocks,
                       .threads = enough < kRowThreads ? enough : kRowThreads,
                       .shared_bytes = static_cast<int32_t>(shared_bytes),
                       .cluster = blocks};
  };
  const auto thread_each = [](int32_t count) {
    return LaunchShape{.grid_x = static_cast<int32_t>(div_ceil(count, kChangeThreads)),
                       .threads = kChangeThreads};
  };
  const auto each_piece = [&](auto&& kernel) {
    constexpr size_t kPiece = size_t{1} << 15;  // 640 KiB
    auto* before = reinterpret_cast<float*>(args.scratch.data());
    for (size_t first = 0; first < args.changes.size(); first += kPiece) {
      const size_t left = args.changes.size() - first;
      const auto changes = args.changes.subspan(first, left < kPiece ? left : kPiece);
      const auto count = static_cast<int32_t>(changes.size());
      launch(stream, thread_each(count), kernel, logits, mirror(changes, stream), count,
             before + first);
    }
  };
  launch(stream, cluster_each(sizeof(RowMemory)), inspect_kernel, logits, mirror(args.rows, stream),
         sampled);
  each_piece(change_kernel);
  auto* masks = reinterpret_cast<uint32_t*>(
      args.scratch.data() + masks_offset(static_cast<int64_t>(args.changes.size())));
  for (size_t first = 0; first < args.masks.size(); first += kMaskPiece) {
    const size_t left = args.masks.size() - first;
    const auto piece = args.masks.subspan(first, left < kMaskPiece ? left : kMaskPiece);
    const auto count = static_cast<int32_t>(piece.size());
    launch(stream, thread_each(count), mask_kernel, mirror(piece, stream), count, masks + first);
  }
  const bool typical = std::any_of(args.rows.begin(), args.rows.end(),
                                   [](const SampleRow& row) { return row.typical_p < 1; });
  launch(stream, cluster_each(sizeof(ChoiceMemory)),
         typical ? choose_kernel<true> : choose_kernel<false>, logits, mirror(args.rows, stream),
         masks, sampled);
  each_piece(restore_kernel);
  if (!args.changes.empty()) {
    launch(stream, thread_each(rows), logit_kernel, logits, mirror(args.rows, stream), rows,
           sampled);
  }
}

}  // namespace tessera::cuda
