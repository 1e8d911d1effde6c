#include "engine/step_pooler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/ops/sampling.h"
#include "models/weights/aligned_memory.h"

namespace tessera {
namespace {

// Requires: the sequence has not ended.
void pool_row(Sequence& sequence, int32_t position, std::span<const float> hidden) {
  const auto broken = std::find_if_not(hidden.begin(), hidden.end(), is_finite);
  if (broken != hidden.end()) {
    sequence.end(FinishReason::failed, absl::InternalError(absl::StrCat(
                                           "the model's hidden state ", broken - hidden.begin(),
                                           " is ", *broken, " after ", position + 1, " tokens")));
    return;
  }
  // Norms of values that overflow are zero. A sum of such rows has no direction.
  if (std::all_of(hidden.begin(), hidden.end(), [](float value) { return value == 0; })) {
    sequence.end(FinishReason::failed,
                 absl::InternalError(absl::StrCat("the model's hidden state is zero after ",
                                                  position + 1, " tokens: its values overflow")));
    return;
  }
  sequence.outbox().pool(position, hidden);
}

}  // namespace

StepPooler::StepPooler(Transformer& model, const Backend& backend, Stream stream)
    : model_(model), backend_(backend), stream_(stream) {
  slice_rows_.reserve(static_cast<size_t>(model.max_logits_rows()));
  if (backend.memory != nullptr) {
    MemoryCutter copied;
    copied.matrix<float>(model.max_logits_rows(), model.config().hidden);
    host_memory_.resize(static_cast<size_t>(copied.used()));
  }
}

void StepPooler::pool(std::span<const HiddenRow> rows, Sequences sequences) {
  const auto slice = static_cast<size_t>(model_.max_logits_rows());
  for (size_t first = 0; first < rows.size(); first += slice) {
    pool_slice(rows.subspan(first, std::min(slice, rows.size() - first)), sequences);
  }
}

void StepPooler::pool_slice(std::span<const HiddenRow> rows, Sequences sequences) {
  slice_rows_.clear();
  for (const HiddenRow& row : rows) {
    slice_rows_.push_back(row.batch_row);
  }
  MatrixView<const float> hidden = model_.hidden(slice_rows_, stream_);
  if (backend_.memory != nullptr) {
    MemoryCutter host(host_memory_.data());
    const MatrixView<float> copy = host.matrix<float>(hidden.rows, hidden.cols);
    backend_.memory->download(copy.data, hidden.data,
                              hidden.rows * hidden.stride * int64_t{sizeof(float)}, stream_);
    hidden = copy;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *sequences[static_cast<size_t>(rows[i].sequence)];
    if (!sequence.ended()) {
      pool_row(sequence, rows[i].position, hidden.row(static_cast<int64_t>(i)));
    }
  }
}

}  // namespace tessera
