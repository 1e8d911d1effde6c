#include "tests/engine/fake_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pages/page_codec.h"
#include "tests/engine/row_sampler.h"

namespace tessera {
namespace {

uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// The fields that the fake model stores for a token in one head.
struct Stored {
  float token;
  float position;
  float head;
};

Stored stored_in(const KvPageLayout& layout, const std::byte* page, int32_t place) {
  float keys[2];
  float values[2];
  decode_token(layout, page, place, keys, values);
  return {keys[0], keys[1], values[0]};
}

}  // namespace

FakeModel::FakeModel(int32_t context, int32_t layers, int32_t kv_heads, int32_t window) {
  config_.architecture = "Fake";
  config_.vocab = kVocab;
  config_.layers = layers;
  config_.heads = kv_heads;
  config_.kv_heads = kv_heads;
  config_.head_dim = 2;
  config_.hidden = kv_heads * 2;
  config_.context = context;
  config_.eos_ids = {kEos};
  config_.sliding_window = window;
  config_.layer_kinds.resize(static_cast<size_t>(layers), LayerKind{.windowed = false});
  config_.layer_kinds.back().windowed = window > 0;
  tokens_.reserve(static_cast<size_t>(context));
  hidden_.resize(static_cast<size_t>(max_logits_rows() * config_.hidden));
  // More tokens than any step of these tests.
  constexpr StepLimits kLimits{.tokens = 4096, .sequences = 64, .context = 0};
  digests_.reserve(kLimits.tokens);
  keys_.reserve(static_cast<size_t>(kLimits.tokens * kv_heads * 2));
  values_.reserve(keys_.capacity());
  dense_.resize(static_cast<size_t>(max_dense_groups(kLimits) * kv_heads *
                                    KvPageLayout::make(kKvF32, 2, kKvGroup).page_bytes));
}

void FakeModel::Digest::add(int32_t token) {
  state = (state ^ static_cast<uint64_t>(token + 1)) * 0x100000001b3u + (state >> 29);
  poisoned = poisoned || token == kPoison;
  overflown = overflown || (token == kOverflow && last == kOverflow);
  last = token;
}

void FakeModel::Digest::write_logits(std::span<float> logits) const {
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t noise = scramble(scramble(state) + i) >> 40;
    logits[i] = poisoned ? std::numeric_limits<float>::quiet_NaN()
                         : static_cast<float>(noise) * (6.0f / (1 << 24));
  }
  if (!poisoned) {
    logits[kPoison] = -60;  // never generated, only in prompts
  }
}

void FakeModel::Digest::write_hidden(std::span<float> hidden) const {
  for (size_t i = 0; i < hidden.size(); ++i) {
    const uint64_t noise = scramble(scramble(~state) + i) >> 40;
    hidden[i] = poisoned ? std::numeric_limits<float>::quiet_NaN()
                         : static_cast<float>(noise) * (2.0f / (1 << 24)) - 1;
    hidden[i] = overflown ? 0 : hidden[i];
  }
}

void FakeModel::hidden_after(std::span<const int32_t> tokens, std::span<float> hidden) {
  Digest digest;
  for (const int32_t token : tokens) {
    digest.add(token);
  }
  digest.write_hidden(hidden);
}

void FakeModel::logits_after(std::span<const int32_t> tokens, std::span<float> logits) {
  Digest digest;
  for (const int32_t token : tokens) {
    digest.add(token);
  }
  digest.write_logits(logits);
}

void FakeModel::forward(const Batch& batch, const KvPagesView& pages, Stream stream) {
  int32_t rows = 0;
  largest_batch_ = std::max(largest_batch_, static_cast<int32_t>(batch.tokens.size()));
  for (const SequenceSpan& span : batch.sequences) {
    if (span.first_row != rows) {
      report("the sequences do not cover the batch");
    }
    for (int32_t i = 0; i < span.count; ++i, ++rows) {
      if (batch.positions[static_cast<size_t>(rows)] != span.context + i) {
        report("a position is not where its token stands");
      }
    }
  }
  if (std::cmp_not_equal(rows, batch.tokens.size())) {
    report("rows are missing from the batch");
  }
  store(batch, pages, stream);
  for (size_t i = 0; i < batch.scorings.size(); ++i) {
    if (batch.scorings[i].token_scores) {
      store_positions(batch.sequences[i], batch.scorings[i], pages);
    }
  }
  digests_.clear();
  for (const SequenceSpan& span : batch.sequences) {
    read_back(span, pages);
    Digest digest;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      digest.add(tokens_[i]);
      if (std::cmp_greater_equal(i, span.context)) {
        digests_.push_back(digest);
      }
    }
  }
}

void FakeModel::logits(std::span<const int32_t> rows, MatrixView<float> logits, Stream /*stream*/) {
  if (std::cmp_not_equal(rows.size(), logits.rows) || logits.rows > max_logits_rows()) {
    return report("logits of another shape");
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    digests_.at(static_cast<size_t>(rows[i])).write_logits(logits.row(static_cast<int64_t>(i)));
  }
}

MatrixView<const float> FakeModel::hidden(std::span<const int32_t> rows, Stream /*stream*/) {
  const MatrixView<float> hidden{hidden_.data(), static_cast<int64_t>(rows.size()), config_.hidden,
                                 config_.hidden};
  if (std::cmp_greater(rows.size(), max_logits_rows())) {
    report("hidden states of too many rows");
    return hidden.first_rows(0);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    digests_.at(static_cast<size_t>(rows[i])).write_hidden(hidden.row(static_cast<int64_t>(i)));
  }
  return hidden;
}

void FakeModel::store(const Batch& batch, const KvPagesView& pages, Stream stream) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  const int64_t cols = int64_t{pages.kv_heads} * 2;
  keys_.resize(static_cast<size_t>(rows * cols));
  values_.resize(keys_.size());
  for (int32_t layer = 0; layer < pages.layers; ++layer) {
    for (size_t i = 0; i < keys_.size(); i += 2) {
      const size_t row = i / static_cast<size_t>(cols);
      const auto head = static_cast<int64_t>(i) % cols / 2;
      keys_[i] = static_cast<float>(batch.tokens[row]);
      keys_[i + 1] = static_cast<float>(batch.positions[row]);
      values_[i] = static_cast<float>(layer * pages.kv_heads + head);
    }
    cpu_backend(CpuIsa::scalar)
        .kv_store({.keys = {keys_.data(), rows, cols, cols},
                   .values = {values_.data(), rows, cols, cols},
                   .sequences = batch.sequences,
                   .pages = pages,
                   .layer = layer,
                   .dense = dense_},
                  stream);
  }
}

// As kv_score does for tokens that no query has scored.
void FakeModel::store_positions(const SequenceSpan& span, const KvScoring& scoring,
                                const KvPagesView& pages) {
  const int64_t first = pages.row_index(span.slot, 0, 0);
  for (int64_t row = first; row < first + int64_t{pages.layers} * pages.kv_heads; ++row) {
    if (scoring.section > 0) {
      for (int32_t i = 0; i < scoring.section; ++i) {
        pages.token_score_row(row)[i] = {0, scoring.begin - scoring.section + i};
      }
      continue;
    }
    for (int32_t position = span.context; position < span.context + span.count; ++position) {
      pages.token_score_row(row)[position] = {0, position};
    }
  }
}

void FakeModel::read_back(const SequenceSpan& span, const KvPagesView& pages) {
  const KvPageLayout& layout = pages.layouts[span.tiers.high];
  const int32_t length = span.context + span.count;
  const int32_t closed = length / kKvGroup * kKvGroup;
  tokens_.clear();
  for (int32_t head = 0; head < pages.layers * pages.kv_heads; ++head) {
    const int64_t row = pages.row_index(span.slot, head / pages.kv_heads, head % pages.kv_heads);
    if (pages.rows[row].high != closed || pages.rows[row].low != 0) {
      return report("a row does not hold the closed groups");
    }
    const int32_t window = config_.window_of(head / pages.kv_heads);
    const int32_t first = window == 0 ? 0 : std::max(0, span.context + 1 - window);
    for (int32_t position = first; position < length; ++position) {
      const bool in_page = position < closed;
      const int32_t page_id = in_page ? pages.table(row)[position / layout.capacity] : 0;
      if (page_id == kNoPage) {
        return report("an earlier token has lost its page");
      }
      const Stored stored =
          in_page ? stored_in(layout, pages.page(page_id), position % layout.capacity)
                  : stored_in(pages.residual_layout, pages.residual(row), position % kKvGroup);
      if (head == 0) {
        tokens_.push_back(static_cast<int32_t>(stored.token));
      }
      if (static_cast<int32_t>(stored.token) != tokens_[static_cast<size_t>(position)] ||
          stored.position != static_cast<float>(position) ||
          stored.head != static_cast<float>(head)) {
        return report("a page does not hold the stored values");
      }
    }
  }
}

void FakeModel::report(const std::string& defect) {
  if (defect_.empty()) {
    defect_ = defect;
  }
}

Outcome run_alone(const EngineRequest& request, int32_t context) {
  Outcome outcome;
  RowSampler sampler(FakeModel::kVocab);
  std::vector<float> logits(FakeModel::kVocab);
  std::vector<int32_t> stop_ids = request.stop_ids;
  if (!request.ignore_eos) {
    stop_ids.push_back(FakeModel::kEos);
  }
  const std::vector<int32_t>& forced = request.forced;
  const size_t max_tokens =
      forced.empty() ? static_cast<size_t>(request.max_tokens) : forced.size();
  std::vector<int32_t> tokens = request.prompt;
  while (outcome.tokens.size() < max_tokens && std::cmp_less(tokens.size(), context)) {
    FakeModel::logits_after(tokens, logits);
    const auto next = sampler.sample(
        logits,
        {.params = request.sampling,
         .prompt = request.prompt,
         .generated = outcome.tokens,
         .stop_ids = stop_ids,
         .forced = forced.empty() ? std::nullopt : std::optional(forced[outcome.tokens.size()])});
    if (!next.ok()) {
      outcome.reason = FinishReason::failed;
      return outcome;
    }
    if (forced.empty() &&
        std::find(stop_ids.begin(), stop_ids.end(), next->token) != stop_ids.end()) {
      outcome.reason = FinishReason::stop;
      return outcome;
    }
    outcome.tokens.push_back(next->token);
    tokens.push_back(next->token);
  }
  outcome.reason = FinishReason::length;
  return outcome;
}

}  // namespace tessera
