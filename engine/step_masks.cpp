#include "engine/step_masks.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "kernels/ops/sampling.h"

namespace tessera {

namespace {

// Beside a device. More threads than this gain little, and the host has other work.
constexpr int kThreadsBesideDevice = 8;

int threads_beside_device() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreadsBesideDevice);
}

}  // namespace

StepMasks::StepMasks(Ranks& ranks, int32_t vocab, int32_t max_sequences, const Backend& backend,
                     Stream stream)
    : ranks_(ranks), words_(static_cast<size_t>(mask_words(vocab))) {
  choosers_.reserve(static_cast<size_t>(max_sequences));
  masks_.resize(static_cast<size_t>(std::max(max_sequences, kDraftingTokens)) * words_);
  if (ranks.leads()) {
    if (backend.memory != nullptr) {
      own_threads_ = std::make_unique<ThreadPool>(threads_beside_device());
    }
    threads_ = backend.memory != nullptr ? own_threads_.get() : &ThreadPool::of(stream);
  }
}

void StepMasks::fill(std::span<const LogitsRow> rows, Sequences sequences) {
  choosers_.clear();
  size_t masks = 0;
  for (const LogitsRow& row : rows) {
    if (!row.chooses || !sequences[static_cast<size_t>(row.sequence)]->request().constrained)
      continue;
    if (choosers_.empty() || choosers_.back().sequence != row.sequence) {
      TESSERA_CHECK(choosers_.size() < choosers_.capacity(), "more choices than sequences");
      choosers_.push_back({row.sequence, row.position, 0, masks});
    }
    ++choosers_.back().rows;
    ++masks;
  }
  if (choosers_.empty()) {
    return;
  }
  TESSERA_CHECK(masks * words_ <= masks_.size(), "more rows than masks");
  if (threads_ != nullptr) {
    threads_->parallel_for(std::ssize(choosers_), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); std::cmp_less(i, end); ++i) {
        fill(choosers_[i], sequences);
      }
    });
  }
  ranks_.broadcast(std::span(masks_).first(masks * words_));
}

void StepMasks::fill(const Chooser& chooser, Sequences sequences) {
  const Sequence& sequence = *sequences[static_cast<size_t>(chooser.sequence)];
  TokenConstraint& constraint = *sequence.tokens().constraint();
  int32_t accepted = 0;
  for (int32_t row = 0; row < chooser.rows; ++row) {
    const auto mask =
        std::span(masks_).subspan((chooser.first_mask + static_cast<size_t>(row)) * words_, words_);
    constraint.fill(mask);
    if (row + 1 == chooser.rows) break;
    const int32_t drafted = sequence.tokens().drafted()[static_cast<size_t>(row)];
    if (!allows(mask.data(), drafted)) break;
    constraint.accept(drafted);
    ++accepted;
  }
  if (accepted > 0) {
    constraint.take_back(accepted);
  }
}

std::span<const uint32_t> StepMasks::of(const LogitsRow& row) const {
  const auto chooser = std::ranges::find(choosers_, row.sequence, &Chooser::sequence);
  if (chooser == choosers_.end()) return {};
  const auto mask = chooser->first_mask + static_cast<size_t>(row.position - chooser->position);
  return std::span(masks_).subspan(mask * words_, words_);
}

}  // namespace tessera
