#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/kv_copies.h"
#include "bench/ops/ops.h"
#include "kernels/kv/whole_layers.h"

namespace tessera::bench {
namespace {

constexpr int64_t kFloat = sizeof(float);

struct AttentionCase {
  int32_t sequences = 1;
  int32_t count = 1;    // query rows of each sequence
  int32_t context = 0;  // tokens before the query rows
  int32_t gqa_ratio = 0;
  int32_t page_tokens = 64;
  int32_t shared = 0;  // tokens of the context in pages that all sequences share

  std::string label() const {
    return (count == 1 ? "decode " : "prefill ") + std::to_string(sequences) + " x " +
           std::to_string(count) + " at " + std::to_string(context) +
           (shared > 0 ? " sharing " + std::to_string(shared) : "") + " GQA " +
           std::to_string(gqa_ratio) + " page " + std::to_string(page_tokens);
  }
};

constexpr int32_t kLongContext = 32768;

std::vector<AttentionCase> attention_sizes(const Shape& shape) {
  const int32_t far = shape.context - 1;
  const int32_t gqa_ratio = shape.gqa_ratio();
  std::vector<AttentionCase> cases{
      {1, 1, far, gqa_ratio}, {8, 1, far, gqa_ratio}, {32, 1, 511, gqa_ratio}};
  for (const int32_t other : {1, 8}) {
    if (other != gqa_ratio) {
      cases.push_back({1, 1, far, other});
    }
  }
  cases.push_back({1, 1, far, gqa_ratio, 16});
  for (const int32_t shared : {2048, 512}) {
    cases.push_back({32, 1, shared + 255, gqa_ratio, 64, shared});
  }
  if (shape.context >= 8192) {  // typical load of a large model
    cases.push_back({32, 1, far, gqa_ratio});
    cases.push_back({4, 1, 8 * shape.context - 1, gqa_ratio});
  }
  for (const int32_t context : {0, 512, 2048}) {
    cases.push_back({1, 512, context, gqa_ratio});
  }
  if (shape.context >= 2048) {
    cases.push_back({1, 1, kLongContext - 1, gqa_ratio});
  }
  return cases;
}

// Decode is also timed as under a policy with scores: attention stores weights, and kv_score
// follows. Cases with shared pages are also timed with a separate read by each sequence, the
// longest context also with tiles selected by key sketches.
struct Way {
  const char* suffix;       // of the format's name
  int32_t part = 1;         // tiles of a row for each one that is read
  bool each_alone = false;  // a shared prefix is read by each sequence
  bool scored = false;
};
constexpr Way kUsual{""};
constexpr Way kEachAlone{.suffix = ", each alone", .each_alone = true};
constexpr Way kScored{.suffix = "+score", .scored = true};
constexpr Way kParts[] = {
    {", 1/4 read", 4}, {", 1/8 read", 8}, {", 1/16 read", 16}, {", 1/32 read", 32}};

std::vector<Way> ways(const AttentionCase& size, KvFormat format, bool selects_tiles) {
  if (size.shared > 0) {
    return {kEachAlone, kUsual};
  }
  std::vector<Way> all{kUsual};
  if (size.count == 1 && format != kKvF32) {
    all.push_back(kScored);
  }
  if (size.context == kLongContext - 1 && selects_tiles) {
    all.insert(all.end(), std::begin(kParts), std::end(kParts));
  }
  return all;
}

KvPolicy scored_policy() {
  KvPolicy policy;
  policy.scorer = KvScorer::sum;
  policy.score_window = 0;
  policy.keep = KeepBudget{.amount = KvAmount::of_share(0.25f)};
  return policy;
}

// Queries and results of a step, and its layer of pages. Copy i of the rows belongs to layer
// first_layer() + i. In a scored step every query counts for the scores
// of a policy, and kv_score follows attention.
class AttentionStep {
 public:
  AttentionStep(const AttentionCase& size, KvFormat format, Way way, const Setup& setup,
                const Shape& shape)
      : size_(size),
        part_(way.part),
        kv_heads_(shape.kv_heads),
        head_dim_(shape.head_dim),
        width_(int64_t{query_heads()} * head_dim_),
        kv_({.format = format,
             .head_dim = shape.head_dim,
             .kv_heads = shape.kv_heads,
             .page_tokens = size.page_tokens,
             .sequences = size.sequences,
             .context = size.context + size.count,
             .shared = size.shared,
             .token_scores = way.scored,
             .sketched = part_ > 1,
             .at_least = setup.memory_bytes,
             .min_layers = part_ > 1 ? kWholeLayers + 1 : 2,
             .max_layers = setup.as_in_model ? shape.layers : 0},
            *setup.device, setup.isas[0]),
        rows_(CycledMemory::with_copies(*setup.device, {row_bytes(), row_bytes()},
                                        kv_.layers() - first_layer())),
        log_sums_(*setup.device, way.scored ? rows() * query_heads() * kFloat : 0),
        weights_(*setup.device,
                 way.scored ? size.sequences * shape.kv_heads * weight_cols() * kFloat : 0),
        dense_(kv_.dense(size.sequences * dense_groups({0, 0, size.count, size.context, {}}))),
        plan_(*setup.device, plan_bytes(setup)),
        scratch_(*setup.device, scratch_bytes(setup)) {
    for (int32_t i = 0; i < size.sequences; ++i) {
      spans_.push_back({i, i * size.count, size.count, size.context, {}});
      if (part_ > 1) {
        spans_.back().read_tiles = size.context / kAttentionTile / part_;
      }
      if (way.scored) {
        scorings_.push_back(scoring_of(scored_policy(), size.context));
      }
    }
    rows_.fill_random(0, rows() * width_);
    rows_.replicate();
  }

  int64_t cycled_bytes() const { return kv_.bytes() + rows_.bytes(); }

  // Returns: arguments for the least recently used layer.
  AttentionArgs next(bool share_reads = true) {
    const int64_t copy = rows_.next();
    return {.queries = {rows_.operand<float>(copy, 0), rows(), width_, width_},
            .sequences = spans_,
            .pages = kv_.view(),
            .layer = first_layer() + static_cast<int32_t>(copy),
            .query_heads = query_heads(),
            .scale = 1 / std::sqrt(static_cast<float>(head_dim_)),
            .dense = dense_.span(),
            .out = {rows_.operand<float>(copy, 1), rows(), width_, width_},
            .log_sums = log_sums(),
            .scorings = scorings_,
            .weights = weights(),
            .plan = plan_.span(),
            .scratch = scratch_.span(),
            .share_reads = share_reads};
  }

  // Plans every call of the step, if the backend has an op for it. A model plans once for all
  // layers, so its time is not part of attention's.
  void plan(const Backend& backend, bool share_reads, Stream stream) const {
    if (backend.plan_attention != nullptr) {
      backend.plan_attention({.sequences = spans_,
                              .scorings = scorings_,
                              .weights = weights(),
                              .pages = kv_.view(),
                              .query_heads = query_heads(),
                              .share_reads = share_reads,
                              .stored = true,
                              .plan = plan_.span()},
                             stream);
    }
  }

  // Counts shared pages as read once, also for variants that read them once per sequence.
  OpCost cost() {
    AttentionArgs args = next();
    args.pages = kv_.host_view();
    OpCost cost = scorings_.empty() ? op_cost(args) : op_cost(args) + op_cost(score(args));
    cost.read_bytes -= int64_t{size_.sequences - 1} * size_.shared * kv_heads_ *
                       kv_token_bytes(kv_.view().layouts[0]);
    return cost;
  }

  // Returns: arguments of the kv_score call that follows this attention call.
  KvScoreArgs score(const AttentionArgs& attention) {
    return {.queries = attention.queries,
            .log_sums = attention.log_sums,
            .sequences = spans_,
            .scorings = scorings_,
            .weights = attention.weights,
            .pages = attention.pages,
            .layer = attention.layer,
            .query_heads = attention.query_heads,
            .scale = attention.scale,
            .dense = dense_.span()};
  }

 private:
  int32_t first_layer() const { return part_ > 1 ? kWholeLayers : 0; }  // the first that selects
  // log_sums() and weights() are one buffer for all layers, as in a model.
  MatrixView<float> log_sums() const {
    return log_sums_.size() == 0
               ? MatrixView<float>{}
               : MatrixView<float>{log_sums_.as<float>(), rows(), query_heads(), query_heads()};
  }
  MatrixView<float> weights() const {
    return {weights_.as<float>(), weights_.size() == 0 ? 0 : int64_t{size_.sequences} * kv_heads_,
            weight_cols(), weight_cols()};
  }
  StepLimits limits() const {
    return {static_cast<int32_t>(rows()), size_.sequences, size_.context + size_.count, part_ > 1};
  }
  int64_t plan_bytes(const Setup& setup) const {
    const Backend& backend = setup.device->backend(setup.isas[0]);
    return backend.attention_plan_bytes == nullptr
               ? 0
               : backend.attention_plan_bytes(limits(), kv_.view().layers, kv_heads_,
                                              query_heads());
  }
  int64_t scratch_bytes(const Setup& setup) const {
    int64_t max = 0;
    for (const std::string_view isa : setup.isas) {
      max = std::max(max, setup.device->backend(isa).attention_scratch_bytes(
                              limits(), query_heads(), head_dim_));
    }
    return max;
  }
  int32_t query_heads() const { return kv_heads_ * size_.gqa_ratio; }
  int64_t weight_cols() const {
    return attention_weight_row_floats(size_.context + size_.count, size_.gqa_ratio);
  }

  int64_t rows() const { return int64_t{size_.sequences} * size_.count; }
  int64_t row_bytes() const { return rows() * width_ * int64_t{sizeof(float)}; }

  AttentionCase size_;
  int32_t part_;  // tiles of a row for each one that is read
  int32_t kv_heads_;
  int32_t head_dim_;
  int64_t width_;
  KvCopies kv_;
  CycledMemory rows_;
  DeviceArray log_sums_;
  DeviceArray weights_;
  DeviceArray dense_;
  DeviceArray plan_;
  DeviceArray scratch_;
  std::vector<SequenceSpan> spans_;
  std::vector<KvScoring> scorings_;
};

std::vector<Variant> prepare_attention(const AttentionCase& size, const Setup& setup,
                                       const Shape& shape) {
  const bool selects_tiles = setup.device->backend(setup.isas[0]).selects_tiles;
  std::vector<Variant> variants;
  for (const KvFormatName& kv : setup.kv) {
    for (const Way way : ways(size, kv.format, selects_tiles)) {
      const auto step = std::make_shared<AttentionStep>(size, kv.format, way, setup, shape);
      step->plan(setup.device->backend(setup.isas[0]), !way.each_alone, setup.device->stream());
      for (const std::string_view isa : setup.isas) {
        const Backend& backend = setup.device->backend(isa);
        variants.push_back({.format = std::string(kv.name) + way.suffix,
                            .isa = std::string(isa),
                            .peer = {},
                            .cost = step->cost(),
                            .arithmetic = setup.device->attention_arithmetic(),
                            .cycled_bytes = step->cycled_bytes(),
                            .call = [step, way, &backend, stream = setup.device->stream()] {
                              const AttentionArgs next = step->next(!way.each_alone);
                              backend.attention(next, stream);
                              if (way.scored) {
                                backend.kv_score(step->score(next), stream);
                              }
                            }});
      }
    }
  }
  return variants;
}

std::vector<Case> attention_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const AttentionCase& size : attention_sizes(shape)) {
    all.push_back({.label = size.label(),
                   .parameters = {{"sequences", size.sequences},
                                  {"tokens", size.count},
                                  {"context", size.context},
                                  {"group", size.gqa_ratio},
                                  {"page_tokens", size.page_tokens},
                                  {"shared", size.shared},
                                  {"kv_heads", shape.kv_heads},
                                  {"head_dim", shape.head_dim}},
                   .prepare = [=, &setup] { return prepare_attention(size, setup, shape); }});
  }
  return all;
}

}  // namespace

Op attention_op() {
  return {"attention", "new tokens against their sequences' pages", attention_cases};
}

}  // namespace tessera::bench
