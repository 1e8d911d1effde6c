#include "engine/step_masks.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/sampling.h"

namespace tessera {

StepMasks::StepMasks(Ranks& ranks, int32_t vocab, int32_t max_sequences)
    : ranks_(ranks), words_(static_cast<size_t>(mask_words(vocab))) {
  sequences_.reserve(static_cast<size_t>(max_sequences));
  masks_.resize(static_cast<size_t>(max_sequences) * words_);
}

void StepMasks::fill(std::span<const LogitsRow> rows, Sequences sequences) {
  sequences_.clear();
  for (const LogitsRow& row : rows) {
    if (row.chooses && sequences[static_cast<size_t>(row.sequence)]->constrained()) {
      TESSERA_CHECK(sequences_.size() < sequences_.capacity(), "more choices than sequences");
      sequences_.push_back(row.sequence);
    }
  }
  if (sequences_.empty()) {
    return;
  }
  const std::span<uint32_t> used = std::span(masks_).first(sequences_.size() * words_);
  for (size_t i = 0; ranks_.leads() && i < sequences_.size(); ++i) {
    sequences[static_cast<size_t>(sequences_[i])]->constraint()->fill(
        used.subspan(i * words_, words_));
  }
  ranks_.broadcast(used);
}

std::span<const uint32_t> StepMasks::of(int32_t sequence) const {
  const auto place = std::find(sequences_.begin(), sequences_.end(), sequence);
  return place == sequences_.end()
             ? std::span<const uint32_t>()
             : std::span(masks_).subspan(static_cast<size_t>(place - sequences_.begin()) * words_,
                                         words_);
}

}  // namespace tessera
