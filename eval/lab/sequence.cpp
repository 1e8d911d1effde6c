#include "eval/lab/sequence.h"

#include <utility>

#include "base/check.h"
#include "eval/lab/attention.h"

namespace tessera::lab {
namespace {

// The attention of one token over what the method keeps.
class OneToken final : public LayerHandler {
 public:
  OneToken(Method& method, Cache& cache, int32_t token)
      : method_(method), cache_(cache), token_(token) {}

  void attend(const LayerStep& step) override {
    TESSERA_CHECK(step.queries.rows == 1, "tokens are computed one by one");
    const Shape& shape = cache_.shape;
    for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      const int64_t column = int64_t{kv_head} * shape.head_dim;
      cache_.at(step.layer, kv_head)
          .add(step.first, step.keys.columns(column, shape.head_dim).row(0),
               step.values.columns(column, shape.head_dim).row(0));
    }
    method_.before_read(step, cache_);
    for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      read_group(step, kv_head);
    }
  }

 private:
  void read_group(const LayerStep& step, int32_t kv_head) {
    const Shape& shape = cache_.shape;
    HeadCache& head = cache_.at(step.layer, kv_head);
    const int64_t first = int64_t{kv_head} * shape.group() * shape.head_dim;
    const Read read{
        .layer = step.layer,
        .kv_head = kv_head,
        .token = token_,
        .position = step.first,
        .scale = step.scale,
        .queries = {step.queries.data + first, shape.group(), shape.head_dim, shape.head_dim}};
    const MatrixView<float> out{step.out.data + first, shape.group(), shape.head_dim,
                                shape.head_dim};
    Rows weights(shape.group(), head.size());
    for (int32_t query = 0; query < shape.group(); ++query) {
      const auto entries = entries_in_window(method_.choose(read, query, head), head, step);
      const Rows probabilities = attend_cache(read.queries.rows_from(query, 1), step.scale, head,
                                              entries, out.rows_from(query, 1));
      const std::span<const float> from = probabilities.row(0);
      const std::span<float> to = weights.row(query);
      for (size_t i = 0; i < from.size(); ++i) {
        to[entries ? static_cast<size_t>((*entries)[i]) : i] = from[i];
      }
    }
    method_.after_read(read, std::as_const(weights).view(), head);
  }

  // Leaves out the entries behind the layer's sliding window, if it has one.
  static std::optional<std::vector<int32_t>> entries_in_window(
      std::optional<std::vector<int32_t>> chosen, const HeadCache& head, const LayerStep& step) {
    if (step.window == 0) return chosen;
    std::vector<int32_t> seen;
    for (int32_t i = 0; i < (chosen ? static_cast<int32_t>(chosen->size()) : head.size()); ++i) {
      const int32_t entry = chosen ? (*chosen)[static_cast<size_t>(i)] : i;
      if (head.positions[static_cast<size_t>(entry)] > step.first - step.window) {
        seen.push_back(entry);
      }
    }
    return seen;
  }

  Method& method_;
  Cache& cache_;
  const int32_t token_;
};

}  // namespace

Sequence::Sequence(Model& model, const Method& method, std::span<const int32_t> prompt)
    : model_(model), method_(method.clone()), cache_(model.shape()) {
  logits_ = method_->compute_prompt(model_, prompt, cache_);
  cache_.tokens = static_cast<int32_t>(prompt.size());
}

Sequence::Sequence(const Sequence& other)
    : model_(other.model_),
      method_(other.method_->clone()),
      cache_(other.cache_),
      logits_(other.logits_) {}

void Sequence::add(int32_t token) {
  OneToken handler(*method_, cache_, token);
  logits_ = model_.compute({&token, 1}, cache_.tokens, handler);
  ++cache_.tokens;
  method_->after_token(cache_);
}

}  // namespace tessera::lab
