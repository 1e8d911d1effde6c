#include <cmath>
#include <memory>
#include <numeric>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

enum RopeOperand : size_t { kHeads, kCos, kSin };

RopeArgs rope_args(CycledMemory& memory, std::span<const int32_t> positions, const Shape& shape) {
  const int64_t copy = memory.next();
  const int64_t rows = std::ssize(positions);
  const int64_t width = shape.query_width();
  return {.heads = {memory.operand<float>(copy, kHeads), rows, width, width},
          .positions = positions,
          .cos = memory.operand<float>(copy, kCos),
          .sin = memory.operand<float>(copy, kSin),
          .head_dim = shape.head_dim,
          .rotary_dim = shape.head_dim};
}

std::vector<Variant> prepare_rope(int64_t rows, const Setup& setup, const Shape& shape) {
  const int64_t floats = rows * shape.query_width();
  const int64_t angles = rows * shape.head_dim / 2;
  const auto memory = std::make_shared<CycledMemory>(
      *setup.device, std::initializer_list<int64_t>{floats * 4, angles * 4, angles * 4},
      setup.memory_bytes, setup.as_in_model ? shape.layers : 0);
  memory->fill_random(kHeads, floats);
  std::vector<float> cosines;
  std::vector<float> sines;
  for (int64_t i = 0; i < angles; ++i) {
    cosines.push_back(std::cos(static_cast<float>(i)));
    sines.push_back(std::sin(static_cast<float>(i)));
  }
  memory->fill(kCos, cosines);
  memory->fill(kSin, sines);
  memory->replicate();
  std::vector<int32_t> positions(static_cast<size_t>(rows));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back({.format = "f32",
                        .isa = std::string(isa),
                        .peer = {},
                        .cost = op_cost(rope_args(*memory, positions, shape)),
                        .cycled_bytes = memory->bytes(),
                        .call = [=, &backend, stream = setup.device->stream()] {
                          backend.rope(rope_args(*memory, positions, shape), stream);
                        }});
  }
  return variants;
}

std::vector<Case> rope_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const int64_t tokens : {1, 32, 512}) {
    all.push_back({.label = std::to_string(tokens) + " x " + std::to_string(shape.query_heads) +
                            " heads of " + std::to_string(shape.head_dim),
                   .parameters = {{"tokens", tokens},
                                  {"heads", shape.query_heads},
                                  {"head_dim", shape.head_dim}},
                   .prepare = [=, &setup] { return prepare_rope(tokens, setup, shape); }});
  }
  return all;
}

}  // namespace

Op rope_op() {
  return {"rope", "the queries of a step, rotated in place", rope_cases};
}

}  // namespace tessera::bench
