#include "models/decode_steps.h"

#include <algorithm>
#include <utility>

#include "models/weights/aligned_memory.h"

namespace tessera {
namespace {

// The data that ops read from a step's plan (kernels/recording.h), in one piece of memory.
struct Plan {
  Plan(std::byte* memory, int32_t count) {
    MemoryCutter cutter(memory);
    tokens = cutter.array<int32_t>(count);
    positions = cutter.array<int32_t>(count);
    sequences = cutter.array<SequenceSpan>(count);
    scorings = cutter.array<KvScoring>(count);
    bytes = {memory, static_cast<size_t>(cutter.used())};
  }

  Batch batch(bool scores) const {
    return {tokens, positions, sequences, scores ? scorings : std::span<KvScoring>()};
  }

  std::span<int32_t> tokens;
  std::span<int32_t> positions;
  std::span<SequenceSpan> sequences;
  std::span<KvScoring> scorings;
  std::span<const std::byte> bytes;
};

// Returns: the first tier with a sparse format, or kMaxKvLayouts if there is none.
uint8_t sparse_tier(const KvPagesView& pages) {
  uint8_t tier = 0;
  while (tier < kMaxKvLayouts &&
         !(pages.layouts[tier].capacity > 0 && pages.layouts[tier].format.is_sparse())) {
    ++tier;
  }
  return tier;
}

bool is_sparse(const KvPagesView& pages, const SequenceSpan& sequence) {
  return pages.layouts[sequence.tiers.high].format.is_sparse() ||
         pages.layouts[sequence.tiers.low].format.is_sparse();
}

// Fills the plan that launches the most work of its size. Each sequence has the max number of
// groups, its last group closes, and it is scored.
void fill(const Plan& plan, const DecodeSize& size, const KvPagesView& pages) {
  const uint8_t tier = size.sparse ? sparse_tier(pages) : uint8_t{0};
  const int32_t groups = size.context / kKvGroup;
  const int32_t stored = (groups > 0 ? groups * kKvGroup : size.context) - 1;
  std::fill(plan.tokens.begin(), plan.tokens.end(), 0);
  std::fill(plan.positions.begin(), plan.positions.end(), 0);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    plan.sequences[i] = {};
    plan.sequences[i].first_row = static_cast<int32_t>(i);
    plan.sequences[i].count = 1;
    plan.sequences[i].context = stored;
    plan.sequences[i].tiers = {tier, tier};
    plan.scorings[i] = {};
    plan.scorings[i].token_scores = true;
    plan.scorings[i].query_sums = pages.query_sums != nullptr;
  }
}

void fill(const Plan& plan, const Batch& batch) {
  const auto put = [](auto from, auto to, auto padding) {
    std::fill(std::copy(from.begin(), from.end(), to.begin()), to.end(), padding);
  };
  put(batch.tokens, plan.tokens, 0);
  put(batch.positions, plan.positions, 0);
  put(batch.sequences, plan.sequences, SequenceSpan{});
  put(batch.scorings, plan.scorings, KvScoring{});
}

std::vector<int32_t> doubling(int32_t first, int32_t last) {
  std::vector<int32_t> sizes;
  for (int64_t size = first; size < last; size *= 2) {
    sizes.push_back(static_cast<int32_t>(size));
  }
  sizes.push_back(last);
  return sizes;
}

}  // namespace

std::vector<DecodeSize> decode_sizes(const StepLimits& limits, const KvPagesView& pages) {
  std::vector<DecodeSize> sizes;
  const bool any_sparse = sparse_tier(pages) < kMaxKvLayouts;
  for (const int32_t sequences : doubling(1, std::min(limits.sequences, limits.tokens))) {
    for (const int32_t context : doubling(kMinDecodeContext, limits.context)) {
      for (const bool scores : {false, true}) {
        for (const bool sparse : {false, true}) {
          if ((pages.token_scores != nullptr || !scores) && (any_sparse || !sparse)) {
            sizes.push_back({sequences, context, scores, sparse});
          }
        }
      }
    }
  }
  return sizes;
}

DecodeSteps::DecodeSteps(const Backend& backend, const StepLimits& limits, const KvPagesView& pages,
                         const Forward& forward, Stream stream)
    : pages_(pages) {
  const std::vector<DecodeSize> sizes = decode_sizes(limits, pages);
  const size_t bytes = Plan(nullptr, sizes.back().sequences).bytes.size();
  plan_ = std::make_unique<std::byte[]>(bytes);
  const auto largest = std::make_unique<std::byte[]>(bytes);
  for (const DecodeSize& size : sizes) {
    const Plan plan(largest.get(), size.sequences);
    fill(plan, size, pages);
    const RecordArgs args{plan.bytes, [&] { forward(plan.batch(size.scores)); }};
    steps_.push_back({size, backend.record(args, stream)});
  }
}

bool DecodeSteps::start(const Batch& batch, const KvPagesView& pages, Stream stream) {
  if (pages.arena != pages_.arena || batch.sequences.size() != batch.tokens.size() ||
      !batch.adapters.empty()) {
    return false;
  }
  int32_t longest = 0;
  bool sparse = false;
  for (const SequenceSpan& sequence : batch.sequences) {
    longest = std::max(longest, sequence.context + 1);
    sparse = sparse || is_sparse(pages, sequence);
  }
  const auto fits = [&](const Step& step) {
    return std::cmp_less_equal(batch.sequences.size(), step.size.sequences) &&
           longest <= step.size.context && step.size.scores == !batch.scorings.empty() &&
           step.size.sparse == sparse;
  };
  const auto step = std::find_if(steps_.begin(), steps_.end(), fits);
  if (step == steps_.end()) {
    return false;
  }
  const Plan plan(plan_.get(), step->size.sequences);
  fill(plan, batch);
  step->recording->start(plan.bytes, stream);
  return true;
}

}  // namespace tessera
