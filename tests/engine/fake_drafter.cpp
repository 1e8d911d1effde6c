#include "tests/engine/fake_drafter.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/draft_model.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera {
namespace {

constexpr int32_t kPaddedVocab = FakeModel::kVocab + 3;

// Returns: a number of [0, 1) that a text decides.
double chance_of(std::span<const int32_t> text) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (const int32_t token : text) {
    state = (state ^ static_cast<uint64_t>(token)) * 0x100000001b3u;
    state ^= state >> 29;
  }
  return static_cast<double>(state * 0xff51afd7ed558ccdu >> 11) / static_cast<double>(1ull << 53);
}

}  // namespace

FakeDrafter::FakeDrafter(int32_t context, double wrong_share) : wrong_share_(wrong_share) {
  config_.architecture = "FakeDrafter";
  config_.vocab = kPaddedVocab;
  config_.layers = 1;
  config_.heads = 1;
  config_.kv_heads = 1;
  config_.head_dim = kHeadDim;
  config_.hidden = kHeadDim;
  config_.context = context;
  config_.layer_kinds.resize(1, LayerKind{.windowed = false});
  texts_.resize(DraftModel::kSequences);
  for (std::vector<int32_t>& text : texts_) {
    text.reserve(static_cast<size_t>(context));
  }
  constexpr StepLimits kLimits{
      .tokens = DraftModel::kStepTokens, .sequences = DraftModel::kSequences, .context = 0};
  rows_.reserve(kLimits.tokens);
  keys_.reserve(size_t{kLimits.tokens} * kHeadDim);
  dense_.resize(static_cast<size_t>(max_dense_groups(kLimits) *
                                    KvPageLayout::make(kKvF32, kHeadDim, kKvGroup).page_bytes));
}

void FakeDrafter::forward(const Batch& batch, const KvPagesView& pages, Stream stream) {
  if (std::cmp_greater(batch.tokens.size(), DraftModel::kStepTokens)) {
    report("a step of too many tokens");
  }
  rows_.clear();
  for (const SequenceSpan& span : batch.sequences) {
    const auto slot = static_cast<size_t>(span.slot);
    std::vector<int32_t>& text = texts_.at(slot);
    if (std::cmp_greater(span.context, text.size())) {
      return report("tokens stand before the batch that were never stored");
    }
    text.resize(static_cast<size_t>(span.context));
    for (int32_t i = 0; i < span.count; ++i) {
      const auto row = static_cast<size_t>(span.first_row + i);
      if (batch.positions[row] != span.context + i) {
        report("a position is not where its token stands");
      }
      rows_.push_back({slot, text.size()});
      text.push_back(batch.tokens[row]);
    }
  }
  store(batch, pages, stream);
}

void FakeDrafter::store(const Batch& batch, const KvPagesView& pages, Stream stream) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  keys_.resize(static_cast<size_t>(rows * kHeadDim));
  for (size_t i = 0; i < keys_.size(); ++i) {
    keys_[i] = static_cast<float>(batch.tokens[i / kHeadDim]);
  }
  const MatrixView<const float> keys{keys_.data(), rows, kHeadDim, kHeadDim};
  cpu_backend(CpuIsa::scalar)
      .kv_store({.keys = keys,
                 .values = keys,
                 .sequences = batch.sequences,
                 .pages = pages,
                 .layer = 0,
                 .dense = dense_},
                stream);
}

void FakeDrafter::logits(std::span<const int32_t> rows, MatrixView<float> logits,
                         Stream /*stream*/) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows_.at(static_cast<size_t>(rows[i]));
    const auto text = std::span(texts_[row.slot]).first(row.position + 1);
    const std::span<float> out = logits.row(static_cast<int64_t>(i));
    FakeModel::logits_after(text, out.first(FakeModel::kVocab));
    // The outputs beyond the vocabulary are never drafted.
    std::ranges::fill(out.subspan(FakeModel::kVocab), std::numeric_limits<float>::max());
    const double chance = chance_of(text);
    if (chance < wrong_share_) {
      constexpr double kOrdinary = FakeModel::kVocab - 3;
      out[3 + static_cast<size_t>(chance / wrong_share_ * kOrdinary)] = 100;
    }
  }
}

MatrixView<const float> FakeDrafter::hidden(std::span<const int32_t> /*rows*/, Stream /*stream*/) {
  report("a draft model gives no hidden states");
  return {};
}

void FakeDrafter::report(const std::string& defect) {
  if (defect_.empty()) {
    defect_ = defect;
  }
}

}  // namespace tessera
