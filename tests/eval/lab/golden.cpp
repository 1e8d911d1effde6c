#include "tests/eval/lab/golden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "eval/lab/attention.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "text/tokenizer.h"

namespace tessera::lab {
namespace {

using Kept = std::vector<std::vector<std::vector<int32_t>>>;

Rows first_rows(const Rows& rows, int32_t count) {
  Rows first(rows.cols());
  first.add(rows.view().first_rows(count));
  return first;
}

// Tokens 0 and 1 are special, 2 to 9 are punctuation.
class GoldenTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::span<const TextSegment> /*segments*/,
                              bool /*add_bos*/) const override {
    return {};
  }
  std::string token_bytes(int32_t id, bool /*keep_special*/) const override {
    return id < 10 ? " ;" : "a";
  }
  bool strips_leading_space() const override { return false; }
  bool is_special(int32_t id) const override { return id < 2; }
  std::optional<int32_t> special_id(std::string_view /*text*/) const override { return {}; }
  int32_t vocab_size() const override { return 64; }
  std::optional<int32_t> bos_id() const override { return {}; }
  std::optional<int32_t> eos_id() const override { return {}; }
};

// Returns: the positions that each query head read.
std::vector<std::vector<int32_t>> read_layer(Method& method, const LayerStep& step, Cache& cache) {
  const Shape& shape = cache.shape;
  const int32_t dim = shape.head_dim;
  for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    cache.at(step.layer, kv_head)
        .add(step.first, step.keys.columns(int64_t{kv_head} * dim, dim).row(0),
             step.values.columns(int64_t{kv_head} * dim, dim).row(0));
  }
  method.before_read(step, cache);
  std::vector<std::vector<int32_t>> positions;
  for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    HeadCache& head = cache.at(step.layer, kv_head);
    const Read read{.layer = step.layer,
                    .kv_head = kv_head,
                    .token = golden_prompt().tokens[static_cast<size_t>(step.first)],
                    .position = step.first,
                    .scale = step.scale,
                    .queries = {step.queries.data + int64_t{kv_head} * shape.group() * dim,
                                shape.group(), dim, dim}};
    Rows weights(shape.group(), head.size());
    Rows out(1, dim);
    for (int32_t query = 0; query < shape.group(); ++query) {
      const auto entries = method.choose(read, query, head);
      const Rows row =
          attend_cache(read.queries.rows_from(query, 1), step.scale, head, entries, out.view());
      std::vector<int32_t>& own = positions.emplace_back();
      for (size_t i = 0; i < row.row(0).size(); ++i) {
        const size_t entry = entries ? static_cast<size_t>((*entries)[i]) : i;
        weights.row(query)[entry] = row.row(0)[i];
        own.push_back(head.positions[entry]);
      }
    }
    method.after_read(read, std::as_const(weights).view(), head);
  }
  return positions;
}

class GoldenModel final : public Model {
 public:
  GoldenModel() {
    tokenizer = &tokenizer_;
    config_.vocab = 64;
  }
  const Shape& shape() const override { return golden_prompt().shape; }
  const ModelConfig& config() const override { return config_; }
  std::string device() const override { return "none"; }
  ThreadPool& pool() override { return pool_; }
  int32_t context() const override { return golden_prompt().size(); }
  // Shows the handler what the layers computed with full attention, whatever it does.
  std::vector<float> compute(std::span<const int32_t> tokens, int32_t first,
                             LayerHandler& handler) override {
    const auto count = static_cast<int64_t>(tokens.size());
    const Shape& of = shape();
    Rows out(count, int64_t{of.heads} * of.head_dim);
    for (int32_t layer = 0; layer < of.layers; ++layer) {
      const LayerPrompt& from = golden_prompt().layers[static_cast<size_t>(layer)];
      handler.attend({.layer = layer,
                      .first = first,
                      .input = from.input.view().rows_from(first, count),
                      .queries = from.queries.view().rows_from(first, count),
                      .keys_before = from.keys_before.view().rows_from(first, count),
                      .keys = from.keys.view().rows_from(first, count),
                      .values = from.values.view().rows_from(first, count),
                      .scale = from.scale,
                      .out = out.view()});
    }
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
  Projected project(int32_t layer, const Rows& input) override {
    static const nlohmann::json& weights = *new nlohmann::json(golden("weights"));
    const nlohmann::json& own = weights[static_cast<size_t>(layer)];
    return {{},
            times(input, unpack(own["keys"], input.cols())),
            times(input, unpack(own["values"], input.cols()))};
  }

 private:
  void turn(int32_t position, std::span<float> heads) const {
    const auto dim = static_cast<size_t>(shape().head_dim);
    for (size_t head = 0; head < heads.size(); head += dim) {
      for (size_t i = 0; i < dim / 2; ++i) {
        const double angle =
            position * std::pow(1e4, -2 * static_cast<double>(i) / static_cast<double>(dim));
        const double first = double{heads[head + i]};
        const double second = double{heads[head + i + dim / 2]};
        heads[head + i] = static_cast<float>(first * std::cos(angle) - second * std::sin(angle));
        heads[head + i + dim / 2] =
            static_cast<float>(second * std::cos(angle) + first * std::sin(angle));
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

  ModelConfig config_;
  ThreadPool pool_{1};
  GoldenTokenizer tokenizer_;
};

}  // namespace

nlohmann::json golden(std::string_view name) {
  const std::filesystem::path file = std::filesystem::path(TESSERA_SOURCE_DIR) / "tests" /
                                     "golden" / "lab" / (std::string(name) + ".json");
  std::ifstream stream(file);
  return nlohmann::json::parse(stream);
}

Rows unpack(const nlohmann::json& packed, int64_t cols) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(packed.get<std::string>(), &bytes));
  std::vector<float> elements(bytes.size() / sizeof(float));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  const int64_t rows = std::ssize(elements) / cols;
  Rows made(cols);
  made.add(MatrixView<const float>{elements.data(), rows, cols, cols});
  return made;
}

const Prompt& golden_prompt() {
  static const Prompt* const kPrompt = [] {
    const nlohmann::json from = golden("prompt");
    const nlohmann::json& shape = from["shape"];
    auto* const made = new Prompt;
    made->shape = {shape["layers"], shape["heads"], shape["kv_heads"], shape["head_dim"]};
    made->tokens = from["tokens"].get<std::vector<int32_t>>();
    const int64_t query_width = int64_t{made->shape.heads} * made->shape.head_dim;
    const int64_t kv_width = int64_t{made->shape.kv_heads} * made->shape.head_dim;
    for (const nlohmann::json& layer : from["layers"]) {
      made->layers.push_back({.input = unpack(layer["input"], shape["hidden"]),
                              .queries = unpack(layer["queries"], query_width),
                              .keys_before = unpack(layer["keys_before"], kv_width),
                              .keys = unpack(layer["keys"], kv_width),
                              .values = unpack(layer["values"], kv_width),
                              .scale = from["scale"]});
    }
    return made;
  }();
  return *kPrompt;
}

std::unique_ptr<Method> make_method(const std::string& name, const Shape& shape) {
  absl::StatusOr<std::vector<NamedMethod>> found = find_methods(name, shape, true);
  EXPECT_TRUE(found.ok()) << found.status();
  return std::move(found->back().method);
}

Cache fill_from_golden_prompt(Method& method) {
  Cache cache(golden_prompt().shape);
  method.fill(golden_prompt(), cache);
  cache.tokens = golden_prompt().size();
  return cache;
}

Prompt golden_beginning(int32_t tokens) {
  Prompt beginning = golden_prompt();
  beginning.tokens.resize(static_cast<size_t>(tokens));
  for (LayerPrompt& layer : beginning.layers) {
    for (Rows LayerPrompt::*rows :
         {&LayerPrompt::input, &LayerPrompt::queries, &LayerPrompt::keys_before, &LayerPrompt::keys,
          &LayerPrompt::values}) {
      layer.*rows = first_rows(layer.*rows, tokens);
    }
  }
  return beginning;
}

Model& golden_model() {
  static GoldenModel model;
  return model;
}

Cache compute_from_golden_model(Method& method, int32_t tokens) {
  Cache cache(golden_prompt().shape);
  method.compute_prompt(
      golden_model(), std::span(golden_prompt().tokens).first(static_cast<size_t>(tokens)), cache);
  cache.tokens = tokens;
  return cache;
}

std::vector<std::vector<std::vector<std::vector<int32_t>>>> read_golden_tokens(Method& method,
                                                                               Cache& cache) {
  const Prompt& prompt = golden_prompt();
  std::vector<std::vector<std::vector<std::vector<int32_t>>>> positions;
  while (cache.tokens < prompt.size()) {
    auto& layers = positions.emplace_back();
    Rows out(1, int64_t{prompt.shape.heads} * prompt.shape.head_dim);
    for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
      const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
      const auto row = [&](const Rows& rows) { return rows.view().rows_from(cache.tokens, 1); };
      layers.push_back(read_layer(method,
                                  {.layer = layer,
                                   .first = cache.tokens,
                                   .input = row(from.input),
                                   .queries = row(from.queries),
                                   .keys_before = row(from.keys_before),
                                   .keys = row(from.keys),
                                   .values = row(from.values),
                                   .scale = from.scale,
                                   .out = out.view()},
                                  cache));
    }
    ++cache.tokens;
    method.after_token(cache);
  }
  return positions;
}

std::vector<std::vector<std::vector<int32_t>>> kept_positions(const Cache& cache) {
  std::vector<std::vector<std::vector<int32_t>>> kept(static_cast<size_t>(cache.shape.layers));
  for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
    for (int32_t head = 0; head < cache.shape.kv_heads; ++head) {
      kept[static_cast<size_t>(layer)].push_back(cache.at(layer, head).positions);
    }
  }
  return kept;
}

void expect_kept(const nlohmann::json& expected, std::string_view name) {
  for (const auto& [numbers, kept] : expected.items()) {
    SCOPED_TRACE(numbers);
    const auto method = make_method(std::string(name) + ":" + numbers, golden_prompt().shape);
    EXPECT_EQ(kept_positions(compute_from_golden_model(*method, golden_prompt().size())),
              kept.get<Kept>());
  }
}

void expect_kept_as_golden(std::string_view name) {
  expect_kept(golden(name), name);
}

void expect_kept_later(const nlohmann::json& expected, std::string_view name) {
  for (const auto& [numbers, kept] : expected.items()) {
    SCOPED_TRACE(numbers);
    const auto method = make_method(std::string(name) + ":" + numbers, golden_prompt().shape);
    Cache cache = compute_from_golden_model(*method, 64);
    EXPECT_EQ(kept_positions(cache), kept["prompt"].get<Kept>());
    read_golden_tokens(*method, cache);
    EXPECT_EQ(kept_positions(cache), kept["later"].get<Kept>());
  }
}

void expect_kept_while_generating(std::string_view name) {
  expect_kept_later(golden(name), name);
}

}  // namespace tessera::lab
