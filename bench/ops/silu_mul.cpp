#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

enum SiluMulOperand : size_t { kGateUp, kActivated };

SiluMulArgs silu_mul_args(CycledMemory& memory, int64_t rows, int64_t width) {
  const int64_t copy = memory.next();
  return {.gate_up = {memory.operand<float>(copy, kGateUp), rows, 2 * width, 2 * width},
          .out = {memory.operand<float>(copy, kActivated), rows, width, width}};
}

std::vector<Variant> prepare_silu_mul(int64_t rows, const Setup& setup, const Shape& shape) {
  const int64_t width = shape.ffn;
  const int64_t bytes = rows * width * int64_t{sizeof(float)};
  const auto memory = std::make_shared<CycledMemory>(
      *setup.device, std::initializer_list<int64_t>{2 * bytes, bytes}, setup.memory_bytes,
      setup.as_in_model ? shape.layers : 0);
  memory->fill_random(kGateUp, 2 * rows * width);
  memory->replicate();
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back({.format = "f32",
                        .isa = std::string(isa),
                        .peer = {},
                        .cost = op_cost(silu_mul_args(*memory, rows, width)),
                        .cycled_bytes = memory->bytes(),
                        .call = [=, &backend, stream = setup.device->stream()] {
                          backend.silu_mul(silu_mul_args(*memory, rows, width), stream);
                        }});
  }
  return variants;
}

std::vector<Case> silu_mul_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const int64_t tokens : {1, 32, 512}) {
    all.push_back({.label = std::to_string(tokens) + " x " + std::to_string(shape.ffn),
                   .parameters = {{"tokens", tokens}, {"width", shape.ffn}},
                   .prepare = [=, &setup] { return prepare_silu_mul(tokens, setup, shape); }});
  }
  return all;
}

}  // namespace

Op silu_mul_op() {
  return {"silu_mul", "silu(gate) * up", silu_mul_cases};
}

}  // namespace tessera::bench
