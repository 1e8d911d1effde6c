#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

enum RmsNormOperand : size_t { kUnnormed, kGain, kNormed };

RmsNormArgs rms_norm_args(CycledMemory& memory, int64_t rows, int64_t cols) {
  const int64_t copy = memory.next();
  return {.in = {memory.operand<float>(copy, kUnnormed), rows, cols, cols},
          .weight = {memory.operand<float>(copy, kGain), static_cast<size_t>(cols)},
          .out = {memory.operand<float>(copy, kNormed), rows, cols, cols}};
}

std::vector<Variant> prepare_rms_norm(int64_t rows, const Setup& setup, const Shape& shape) {
  const int64_t cols = shape.hidden;
  const int64_t bytes = rows * cols * int64_t{sizeof(float)};
  const auto memory = std::make_shared<CycledMemory>(
      *setup.device, std::initializer_list<int64_t>{bytes, cols * int64_t{sizeof(float)}, bytes},
      setup.memory_bytes, setup.as_in_model ? shape.layers : 0);
  memory->fill_random(kUnnormed, rows * cols);
  memory->fill_random(kGain, cols);
  memory->replicate();
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back({.format = "f32",
                        .isa = std::string(isa),
                        .peer = {},
                        .cost = op_cost(rms_norm_args(*memory, rows, cols)),
                        .cycled_bytes = memory->bytes(),
                        .call = [=, &backend, stream = setup.device->stream()] {
                          backend.rms_norm(rms_norm_args(*memory, rows, cols), stream);
                        }});
  }
  return variants;
}

std::vector<Case> rms_norm_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const int64_t tokens : {1, 32, 512}) {
    all.push_back({.label = std::to_string(tokens) + " x " + std::to_string(shape.hidden),
                   .parameters = {{"tokens", tokens}, {"hidden", shape.hidden}},
                   .prepare = [=, &setup] { return prepare_rms_norm(tokens, setup, shape); }});
  }
  return all;
}

}  // namespace

Op rms_norm_op() {
  return {"rms_norm", "rows to unit mean square, times a weight", rms_norm_cases};
}

}  // namespace tessera::bench
