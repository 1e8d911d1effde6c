#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/kv_copies.h"
#include "bench/ops/ops.h"
#include "bench/ops/paper_leankv.h"

namespace tessera::bench {
namespace {

struct ScoreCase {
  int32_t sequences = 1;
  int32_t count = 1;    // new tokens of each sequence
  int32_t context = 0;  // tokens before the new ones
};

// Queries and log_sums of a step and its layer of pages, as in attention.cpp. The weights that
// attention stores for decode queries are one buffer for all layers. No state is consumed: each
// call scores the same new tokens again and adds to the scores of all tokens.
class ScoreStep {
 public:
  ScoreStep(const ScoreCase& size, KvFormat format, const Setup& setup, const Shape& shape)
      : size_(size),
        query_heads_(shape.query_heads),
        width_(shape.query_width()),
        scale_(1 / std::sqrt(static_cast<float>(shape.head_dim))),
        kv_({.format = format,
             .head_dim = shape.head_dim,
             .kv_heads = shape.kv_heads,
             .sequences = size.sequences,
             .context = size.context + size.count,
             .token_scores = true,
             .at_least = setup.memory_bytes,
             .max_layers = setup.as_in_model ? shape.layers : 0},
            *setup.device, setup.isas[0]),
        rows_(CycledMemory::with_copies(*setup.device,
                                        {rows() * width_ * int64_t{sizeof(float)},
                                         rows() * query_heads_ * int64_t{sizeof(float)}},
                                        kv_.layers())),
        dense_(kv_.dense(size.sequences * dense_groups({0, 0, size.count, size.context, {}}))),
        weight_cols_(attention_weight_row_floats(size.context + size.count, shape.gqa_ratio())),
        weights_(on_device(
            *setup.device,
            random_floats(size.count == 1 ? size.sequences * shape.kv_heads * weight_cols_ : 0))) {
    // A chunk ends the prompt. A single token follows the prompt.
    const int32_t prompt = size.count > 1 ? size.context + size.count : size.context;
    for (int32_t i = 0; i < size.sequences; ++i) {
      spans_.push_back({i, i * size.count, size.count, size.context, {}});
      scorings_.push_back(scoring_of(paper_leankv(), prompt));
    }
    rows_.fill_random(0, rows() * width_);
    // Approximates the log sum of a softmax over this many products of random numbers, so that
    // probabilities are typical.
    rows_.fill(1,
               std::vector<float>(static_cast<size_t>(rows() * query_heads_),
                                  std::log(static_cast<float>(size.context + size.count)) + 0.5f));
    rows_.replicate();
    KvScoreArgs first = next();
    first.pages = kv_.host_view();
    cost_ = op_cost(first);
  }

  int64_t cycled_bytes() const { return kv_.layers() * cost_.bytes(); }
  const OpCost& cost() const { return cost_; }

  // Returns: arguments for the least recently used layer.
  KvScoreArgs next() {
    const int64_t copy = rows_.next();
    return {
        .queries = {rows_.operand<float>(copy, 0), rows(), width_, width_},
        .log_sums = {rows_.operand<float>(copy, 1), rows(), query_heads_, query_heads_},
        .sequences = spans_,
        .scorings = scorings_,
        .weights = {weights_.as<float>(), weights_.size() / (weight_cols_ * int64_t{sizeof(float)}),
                    weight_cols_, weight_cols_},
        .pages = kv_.view(),
        .layer = static_cast<int32_t>(copy),
        .query_heads = query_heads_,
        .scale = scale_,
        .dense = dense_.span()};
  }

 private:
  int64_t rows() const { return int64_t{size_.sequences} * size_.count; }

  ScoreCase size_;
  int32_t query_heads_;
  int64_t width_;
  float scale_;
  KvCopies kv_;
  CycledMemory rows_;
  OpCost cost_;
  std::vector<SequenceSpan> spans_;
  std::vector<KvScoring> scorings_;
  DeviceArray dense_;
  int64_t weight_cols_;
  DeviceArray weights_;
};

std::vector<Variant> prepare_score(const ScoreCase& size, const Setup& setup, const Shape& shape) {
  std::vector<Variant> variants;
  for (const KvFormatName& kv : setup.kv) {
    if (kv.format == kKvF32) {
      continue;  // no policy supports it
    }
    const auto step = std::make_shared<ScoreStep>(size, kv.format, setup, shape);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back({.format = std::string(kv.name),
                          .isa = std::string(isa),
                          .peer = {},
                          .cost = step->cost(),
                          .arithmetic = setup.device->attention_arithmetic(),
                          .cycled_bytes = step->cycled_bytes(),
                          .call = [step, &backend, stream = setup.device->stream()] {
                            backend.kv_score(step->next(), stream);
                          }});
    }
  }
  return variants;
}

std::vector<Case> score_cases(const Setup& setup, const Shape& shape) {
  const int32_t far = shape.context;
  std::vector<Case> all;
  for (const ScoreCase& size :
       {ScoreCase{1, 1, far - 1}, ScoreCase{8, 1, far - 1}, ScoreCase{1, 512, far - 512}}) {
    all.push_back({.label = (size.count == 1 ? "decode " : "prompt's end ") +
                            std::to_string(size.sequences) + " x " + std::to_string(size.count) +
                            " at " + std::to_string(size.context),
                   .parameters = {{"sequences", size.sequences},
                                  {"tokens", size.count},
                                  {"context", size.context}},
                   .prepare = [=, &setup] { return prepare_score(size, setup, shape); }});
  }
  return all;
}

}  // namespace

Op kv_score_op() {
  return {"kv_score", "attention of leankv's scored queries, added to token scores", score_cases};
}

}  // namespace tessera::bench
