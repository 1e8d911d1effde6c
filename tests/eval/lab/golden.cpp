#include "tests/eval/lab/golden.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"

namespace tessera::lab {

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
  static const Prompt* const prompt = [] {
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
  return *prompt;
}

std::unique_ptr<Method> make_method(const std::string& name, const Shape& shape) {
  absl::StatusOr<std::vector<NamedMethod>> found = find_methods(name, shape);
  EXPECT_TRUE(found.ok()) << found.status();
  return std::move(found->back().method);
}

Cache fill_from_golden_prompt(Method& method) {
  Cache cache(golden_prompt().shape);
  method.fill(golden_prompt(), cache);
  cache.tokens = golden_prompt().size();
  return cache;
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

void expect_kept_as_golden(std::string_view name) {
  const nlohmann::json expected = golden(name);
  for (const auto& [numbers, kept] : expected.items()) {
    SCOPED_TRACE(numbers);
    const auto method =
        make_method(std::string(name) + ":" + numbers, golden_prompt().shape);
    EXPECT_EQ(kept_positions(fill_from_golden_prompt(*method)),
              kept.get<std::vector<std::vector<std::vector<int32_t>>>>());
  }
}

}  // namespace tessera::lab
