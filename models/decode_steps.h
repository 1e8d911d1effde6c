#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/recording.h"
#include "models/transformer.h"

namespace tessera {

// A size of decode steps: so many sequences of one new token each, in contexts of so many tokens at
// most, the new one included; and what else decides how an op is launched.
struct DecodeSize {
  int32_t sequences = 0;
  int32_t context = 0;
  bool scores = false;  // whether somebody's tokens are scored
  bool sparse = false;  // whether somebody's rows have a sparse format

  bool operator==(const DecodeSize&) const = default;
};

// Those that are recorded: sequences by powers of 2 and contexts by powers of 2 from
// kMinDecodeContext on, both up to the limit; with scores too where pages have marks, and with
// sparse rows where they have such a format.
inline constexpr int32_t kMinDecodeContext = 2048;
std::vector<DecodeSize> decode_sizes(const StepLimits& limits, const KvPagesView& pages);

// Decode steps that a backend has recorded. A step is started as the smallest recorded one that it
// fits: the sequences that it lacks are rows of the workspace that nobody reads, the contexts
// blocks that find nothing to do. All recordings are made here, so that a step allocates nothing.
class DecodeSteps {
 public:
  using Forward = std::function<void(const Batch&)>;

  // forward(batch) calls the ops of a forward pass over `pages`. Requires: backend.record.
  DecodeSteps(const Backend& backend, const StepLimits& limits, const KvPagesView& pages,
              const Forward& forward, Stream stream);

  // False: it is no decode step, or over other pages. Otherwise what forward(batch) does is
  // started.
  bool start(const Batch& batch, const KvPagesView& pages, Stream stream);

 private:
  struct Step {
    DecodeSize size;
    std::unique_ptr<Recording> recording;
  };

  const KvPagesView pages_;
  std::vector<Step> steps_;            // in order of sequences, contexts, scores
  std::unique_ptr<std::byte[]> plan_;  // of the largest
};

}  // namespace tessera
