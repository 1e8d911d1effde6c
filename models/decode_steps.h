#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/recording.h"
#include "models/transformer.h"

namespace tessera {

// Size class of decode steps. A step of this size has at most `sequences` sequences of one new
// token each. The two flags also decide how ops are launched.
struct DecodeSize {
  int32_t sequences = 0;
  int32_t context = 0;  // max tokens of a sequence, the new one included
  bool scores = false;  // true if the step computes token scores
  bool sparse = false;  // true if rows of any sequence have a sparse format

  bool operator==(const DecodeSize&) const = default;
};

// Returns: the sizes to record, smallest first. Sequences are powers of 2 and contexts are powers
// of 2 from kMinDecodeContext; both end with the limit itself. Sizes with scores exist only if the
// pages have token scores, sizes with sparse rows only if a layout has a sparse format.
inline constexpr int32_t kMinDecodeContext = 2048;
std::vector<DecodeSize> decode_sizes(const StepLimits& limits, const KvPagesView& pages);

// Recorded decode steps of one backend (CUDA graphs). A step starts the smallest recording that it
// fits. Missing sequences are padding rows of the workspace that are never read. Unused context
// costs thread blocks without work. The constructor makes all recordings, so a step allocates
// nothing.
class DecodeSteps {
 public:
  using Forward = std::function<void(const Batch&)>;

  // forward(batch) calls the ops of a forward pass over `pages`. It is used by the constructor
  // only.
  // Requires: backend.record is set.
  DecodeSteps(const Backend& backend, const StepLimits& limits, const KvPagesView& pages,
              const Forward& forward, Stream stream);

  // Starts the recorded equivalent of forward(batch).
  // Returns: false if nothing was started, because the batch is not a decode step, has adapters,
  // uses other pages or fits no recorded size.
  bool start(const Batch& batch, const KvPagesView& pages, Stream stream);

 private:
  struct Step {
    DecodeSize size;
    std::unique_ptr<Recording> recording;
  };

  const KvPagesView pages_;
  std::vector<Step> steps_;            // ordered by sequences, context, scores, sparse
  std::unique_ptr<std::byte[]> plan_;  // host memory for the plan of the largest size
};

}  // namespace tessera
