#include "engine/step_masks.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "kernels/check.h"
#include "kernels/sampling.h"

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
  sequences_.reserve(static_cast<size_t>(max_sequences));
  masks_.resize(static_cast<size_t>(max_sequences) * words_);
  if (ranks.leads()) {
    if (backend.memory != nullptr) {
      own_threads_ = std::make_unique<ThreadPool>(threads_beside_device());
    }
    threads_ = backend.memory != nullptr ? own_threads_.get() : &ThreadPool::of(stream);
  }
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
  if (threads_ != nullptr) {
    threads_->parallel_for(std::ssize(sequences_), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); std::cmp_less(i, end); ++i) {
        sequences[static_cast<size_t>(sequences_[i])]->constraint()->fill(
            used.subspan(i * words_, words_));
      }
    });
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
