#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::bench {

// A weight: maps a row of `inputs` values to a row of `outputs` values.
struct Matrix {
  std::string name;
  int64_t inputs = 0;
  int64_t outputs = 0;
};

// Model sizes. The benchmarks need nothing else of a model.
struct Shape {
  std::string_view name;
  int64_t parameters = 0;
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn = 0;
  int32_t vocab = 0;
  int32_t context = 0;

  int32_t query_width() const { return query_heads * head_dim; }
  int32_t kv_width() const { return kv_heads * head_dim; }
  int32_t gqa_ratio() const { return query_heads / kv_heads; }
  std::vector<Matrix> matrices() const;  // fused as in the transformer
};

// micro (for tests with emulated devices), tiny (the shipped model), 110m, 1b, 8b.
std::span<const Shape> all_shapes();

}  // namespace tessera::bench
