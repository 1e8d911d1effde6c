#include "tests/eval/lab/golden_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "eval/lab/attention.h"
#include "kernels/check.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "tests/eval/lab/golden.h"

namespace tessera::lab {
namespace {

Rows first_golden_rows(const Rows& rows, int32_t count) {
  Rows first(rows.cols());
  first.add(rows.view().first_rows(count));
  return first;
}

Prompt golden_beginning(int32_t tokens) {
  Prompt begun = golden_prompt();
  begun.tokens.resize(static_cast<size_t>(tokens));
  for (LayerPrompt& layer : begun.layers) {
    for (Rows LayerPrompt::*rows : {&LayerPrompt::input, &LayerPrompt::queries,
                                    &LayerPrompt::keys_before, &LayerPrompt::keys,
                                    &LayerPrompt::values}) {
      layer.*rows = first_golden_rows(layer.*rows, tokens);
    }
  }
  return begun;
}

class GoldenModel final : public Model {
 public:
  const Shape& shape() const override { return golden_prompt().shape; }
  const ModelConfig& config() const override { return config_; }
  std::string device() const override { return "none"; }
  ThreadPool& pool() override { return pool_; }
  std::vector<float> compute(std::span<const int32_t> /*tokens*/, int32_t /*first*/,
                             LayerHandler& /*handler*/) override {
    TESSERA_CHECK(false, "computes nothing");
    return {};
  }
  std::shared_ptr<const Prompt> prompt(std::span<const int32_t> tokens) override {
    return std::make_shared<Prompt>(golden_beginning(static_cast<int32_t>(tokens.size())));
  }
  void rotate(int32_t /*layer*/, int32_t position, std::span<float> heads) const override {
    turn(position, heads);
  }
  void rotate_back(int32_t /*layer*/, int32_t position, std::span<float> heads) const override {
    turn(-position, heads);
  }
  KeysAndValues project(int32_t layer, const Rows& input) override {
    static const nlohmann::json& weights = *new nlohmann::json(golden("weights"));
    const nlohmann::json& own = weights[static_cast<size_t>(layer)];
    return {times(input, unpack(own["keys"], input.cols())),
            times(input, unpack(own["values"], input.cols()))};
  }

 private:
  void turn(int32_t angle, std::span<float> heads) const {
    const int32_t half = shape().head_dim / 2;
    for (size_t head = 0; head < heads.size(); head += static_cast<size_t>(2 * half)) {
      for (int32_t i = 0; i < half; ++i) {
        const double turned = angle * std::pow(10000.0, -static_cast<double>(i) / half);
        float& a = heads[head + static_cast<size_t>(i)];
        float& b = heads[head + static_cast<size_t>(i + half)];
        const double old = double{a};
        a = static_cast<float>(old * std::cos(turned) - double{b} * std::sin(turned));
        b = static_cast<float>(double{b} * std::cos(turned) + old * std::sin(turned));
      }
    }
  }
  // weights: [outputs, inputs]
  static Rows times(const Rows& input, const Rows& weights) {
    Rows product(input.rows(), weights.rows());
    for (int64_t i = 0; i < input.rows(); ++i) {
      for (int64_t j = 0; j < weights.rows(); ++j) {
        product.row(i)[static_cast<size_t>(j)] = dot(input.row(i), weights.row(j));
      }
    }
    return product;
  }

  const ModelConfig config_{};
  ThreadPool pool_{1};
};

// Adds a layer's next token, lets its queries read, and tells the method.
void add_golden_token(int32_t layer, int32_t position, Method& method, Cache& cache) {
  const LayerPrompt& from = golden_prompt().layers[static_cast<size_t>(layer)];
  const Shape& shape = cache.shape;
  for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    HeadCache& head = cache.at(layer, kv_head);
    head.add(position, from.keys_of(shape, kv_head).row(position),
             from.values_of(shape, kv_head).row(position));
    const Read read{.layer = layer,
                    .kv_head = kv_head,
                    .position = position,
                    .scale = from.scale,
                    .queries = {from.queries_of(shape, kv_head * shape.group()).row(position).data(),
                                shape.group(), shape.head_dim, shape.head_dim}};
    Rows out(shape.group(), shape.head_dim);
    const Rows weights =
        attend_cache(read.queries, read.scale, head, method.choose(read, head), out.view());
    method.after_read(read, weights.view(), head);
  }
}

void expect_near(const Rows& expected, const Rows& found, std::string_view what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(expected.rows(), found.rows());
  float most = 0;
  float error = 0;
  for (int64_t r = 0; r < expected.rows(); ++r) {
    for (size_t c = 0; c < expected.row(r).size(); ++c) {
      most = std::max(most, std::fabs(expected.row(r)[c]));
      error = std::max(error, std::fabs(expected.row(r)[c] - found.row(r)[c]));
    }
  }
  EXPECT_LT(error, 2e-4f * most);
}

}  // namespace

Model& golden_model() {
  static GoldenModel model;
  return model;
}

Cache continue_golden_prompt(Method& method, int32_t prompt_tokens) {
  Cache cache(golden_prompt().shape);
  const std::span<const int32_t> tokens(golden_prompt().tokens);
  method.compute_prompt(golden_model(), tokens.first(static_cast<size_t>(prompt_tokens)), cache);
  for (int32_t position = prompt_tokens; position < golden_prompt().size(); ++position) {
    cache.tokens = position;
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
      add_golden_token(layer, position, method, cache);
    }
    ++cache.tokens;
    method.after_token(cache);
  }
  cache.tokens = golden_prompt().size();
  return cache;
}

void expect_rows_as_golden(std::string_view name) {
  for (const nlohmann::json& expected : golden(name)) {
    const auto numbers = expected["numbers"].get<std::string>();
    SCOPED_TRACE(numbers);
    const auto method = make_method(std::string(name) + ":" + numbers, golden_prompt().shape);
    const Cache cache = continue_golden_prompt(*method, expected["prompt"]);
    EXPECT_EQ(method->bytes(cache), expected["bytes"].get<int64_t>());
    for (const nlohmann::json& rows : expected["rows"]) {
      const HeadCache& head = cache.at(rows["layer"], rows["head"]);
      SCOPED_TRACE(absl::StrCat("layer ", rows["layer"].get<int>()));
      expect_near(unpack(rows["keys"], cache.shape.head_dim), head.keys, "keys");
      expect_near(unpack(rows["values"], cache.shape.head_dim), head.values, "values");
    }
  }
}

}  // namespace tessera::lab
