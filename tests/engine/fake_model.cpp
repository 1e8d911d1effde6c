#include "tests/engine/fake_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/sampler.h"

namespace tessera {
namespace {

uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

float* at(std::byte* page, int64_t offset) {
  return reinterpret_cast<float*>(page + offset);
}

}  // namespace

FakeModel::FakeModel(int32_t context, int32_t layers, int32_t kv_heads) {
  config_.architecture = "Fake";
  config_.vocab = kVocab;
  config_.layers = layers;
  config_.heads = kv_heads;
  config_.kv_heads = kv_heads;
  config_.head_dim = 2;
  config_.hidden = kv_heads * 2;
  config_.context = context;
  config_.eos_ids = {kEos};
  tokens_.reserve(static_cast<size_t>(context));
  digests_.reserve(4096);  // more than any step here has
}

void FakeModel::Digest::add(int32_t token) {
  state = (state ^ static_cast<uint64_t>(token + 1)) * 0x100000001b3u + (state >> 29);
  poisoned = poisoned || token == kPoison;
}

void FakeModel::Digest::write_logits(std::span<float> logits) const {
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t noise = scramble(scramble(state) + i) >> 40;
    logits[i] = poisoned ? std::numeric_limits<float>::quiet_NaN()
                         : static_cast<float>(noise) * (6.0f / (1 << 24));
  }
  if (!poisoned) {
    logits[kPoison] = -60;  // it comes from prompts alone
  }
}

void FakeModel::logits_after(std::span<const int32_t> tokens, std::span<float> logits) {
  Digest digest;
  for (const int32_t token : tokens) {
    digest.add(token);
  }
  digest.write_logits(logits);
}

void FakeModel::forward(const Batch& batch, const KvPagesView& pages, Stream /*stream*/) {
  int32_t rows = 0;
  for (const SequenceSpan& span : batch.sequences) {
    if (span.first_row != rows) {
      report("the sequences do not cover the batch");
    }
    rows += span.count;
    store(batch, span, pages);
  }
  if (std::cmp_not_equal(rows, batch.tokens.size())) {
    report("rows are missing from the batch");
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

void FakeModel::store(const Batch& batch, const SequenceSpan& span, const KvPagesView& pages) {
  const KvPageLayout& layout = pages.layout;
  for (int32_t i = 0; i < span.count; ++i) {
    const int32_t position = span.context + i;
    const size_t row = static_cast<size_t>(span.first_row + i);
    if (batch.positions[row] != position) {
      report("a position is not where its token stands");
    }
    for (int32_t head = 0; head < pages.layers * pages.kv_heads; ++head) {
      const int32_t* page_ids = pages.row(span.slot, head / pages.kv_heads, head % pages.kv_heads);
      const int32_t page_id = page_ids[position / layout.capacity];
      if (page_id == kNoPage) {
        return report("a token has no page");
      }
      std::byte* page = pages.page(page_id);
      const int32_t token = position % layout.capacity;
      *at(page, layout.key_offset(token, 0)) = static_cast<float>(batch.tokens[row]);
      *at(page, layout.key_offset(token, 1)) = static_cast<float>(position);
      *at(page, layout.value_offset(token)) = static_cast<float>(head);
    }
  }
}

void FakeModel::read_back(const SequenceSpan& span, const KvPagesView& pages) {
  const KvPageLayout& layout = pages.layout;
  tokens_.clear();
  for (int32_t position = 0; position < span.context + span.count; ++position) {
    for (int32_t head = 0; head < pages.layers * pages.kv_heads; ++head) {
      const int32_t* page_ids = pages.row(span.slot, head / pages.kv_heads, head % pages.kv_heads);
      const int32_t page_id = page_ids[position / layout.capacity];
      if (page_id == kNoPage) {
        return report("an earlier token has lost its page");
      }
      std::byte* page = pages.page(page_id);
      const int32_t in_page = position % layout.capacity;
      const auto token = static_cast<int32_t>(*at(page, layout.key_offset(in_page, 0)));
      if (head == 0) {
        tokens_.push_back(token);
      }
      if (token != tokens_.back() ||
          *at(page, layout.key_offset(in_page, 1)) != static_cast<float>(position) ||
          *at(page, layout.value_offset(in_page)) != static_cast<float>(head)) {
        return report("a page does not hold what was stored");
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
  Sampler sampler(FakeModel::kVocab);
  std::vector<float> logits(FakeModel::kVocab);
  std::vector<int32_t> stop_ids = request.stop_ids;
  if (!request.ignore_eos) {
    stop_ids.push_back(FakeModel::kEos);
  }
  std::vector<int32_t> tokens = request.prompt;
  if (!request.forced.empty()) {
    outcome = {request.forced, FinishReason::length};
    return outcome;
  }
  while (std::cmp_less(outcome.tokens.size(), request.max_tokens) &&
         std::cmp_less(tokens.size(), context)) {
    FakeModel::logits_after(tokens, logits);
    const auto next = sampler.sample(
        {logits, request.sampling, request.prompt, outcome.tokens, std::span(stop_ids)});
    if (!next.ok()) {
      outcome.reason = FinishReason::failed;
      return outcome;
    }
    if (std::find(stop_ids.begin(), stop_ids.end(), next->token) != stop_ids.end()) {
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
