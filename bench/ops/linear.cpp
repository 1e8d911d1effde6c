#include <algorithm>
#include <memory>

#include "bench/cycled_memory.h"
#include "bench/onednn.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

enum LinearOperand : size_t { kIn, kWeight, kOut };

// One matrix in one format, in enough copies to exceed the caches, like the layers of a model.
class LinearProduct {
 public:
  LinearProduct(const Matrix& matrix, int64_t tokens, WeightFormat format, const Setup& setup,
                int64_t max_copies)
      : matrix_(matrix),
        tokens_(tokens),
        format_(format),
        memory_(*setup.device,
                {tokens * matrix.inputs * int64_t{sizeof(float)},
                 ops(setup).packed_weight_bytes(format, matrix.outputs, matrix.inputs),
                 tokens * matrix.outputs * int64_t{sizeof(float)}},
                setup.memory_bytes, max_copies),
        scratch_(*setup.device, ops(setup).linear_scratch_bytes(tokens, matrix.inputs)) {
    memory_.fill_random(kIn, tokens * matrix.inputs);
    weight_ = packed(0);
    // Packs in pieces: a whole matrix of floats may be larger than all copies of the packed one.
    const std::vector<float> piece = random_floats(kPackRows * matrix.inputs);
    for (int64_t row = 0; row < matrix.outputs; row += kPackRows) {
      const int64_t rows = std::min(kPackRows, matrix.outputs - row);
      ops(setup).pack_weight({piece.data(), rows, matrix.inputs, matrix.inputs}, row, weight_);
    }
    memory_.replicate();
  }

  int64_t copies() const { return memory_.copies(); }
  int64_t cycled_bytes() const { return memory_.bytes(); }

  LinearArgs next() {
    const int64_t copy = memory_.next();
    weight_ = packed(copy);
    return {.in = {memory_.operand<float>(copy, kIn), tokens_, matrix_.inputs, matrix_.inputs},
            .weight = &weight_,
            .bias = {},
            .accumulate = false,
            .out = {memory_.operand<float>(copy, kOut), tokens_, matrix_.outputs, matrix_.outputs},
            .scratch = scratch_.span()};
  }

 private:
  static const Backend& ops(const Setup& setup) { return setup.device->backend(setup.isas[0]); }
  PackedWeight packed(int64_t copy) const {
    return {format_, matrix_.outputs, matrix_.inputs, memory_.operand<std::byte>(copy, kWeight)};
  }

  Matrix matrix_;
  int64_t tokens_;
  WeightFormat format_;
  CycledMemory memory_;
  DeviceArray scratch_;
  PackedWeight weight_;
};

// Adds oneDNN's product in the same shape and format, over as many copies.
void add_peer(const LinearProduct& product, const LinearArgs& args, const Variant& ours,
              std::vector<Variant>& variants) {
  Variant peer = ours;
  peer.peer = "oneDNN";
  peer.call = onednn_product({.format = args.weight->format,
                              .tokens = args.in.rows,
                              .outputs = args.weight->rows,
                              .inputs = args.weight->cols,
                              .copies = product.copies()});
  if (peer.call) {
    variants.push_back(std::move(peer));
  }
}

std::vector<Variant> prepare_linear(const Matrix& matrix, int64_t tokens, const Setup& setup,
                                    const Shape& shape) {
  std::vector<Variant> variants;
  const int64_t max_copies =
      setup.as_in_model ? std::max<int64_t>(1, shape.parameters / (matrix.inputs * matrix.outputs))
                        : 0;
  for (const WeightFormat format : setup.weights) {
    const auto product = std::make_shared<LinearProduct>(matrix, tokens, format, setup, max_copies);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back({.format = std::string(name(format)),
                          .isa = std::string(isa),
                          .peer = {},
                          .cost = op_cost(product->next()),
                          .arithmetic = format,
                          .cycled_bytes = product->cycled_bytes(),
                          .call = [product, &backend, stream = setup.device->stream()] {
                            backend.linear(product->next(), stream);
                          }});
    }
    if (setup.peers) {
      const Variant ours = variants[variants.size() - setup.isas.size()];
      add_peer(*product, product->next(), ours, variants);
    }
  }
  return variants;
}

std::vector<Case> linear_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  const std::vector<Matrix> matrices = setup.matrices.empty() ? shape.matrices() : setup.matrices;
  for (const Matrix& matrix : matrices) {
    for (const int64_t tokens : {1, 8, 32, 512}) {
      all.push_back(
          {.label = matrix.name + " " + std::to_string(tokens) + " x " +
                    std::to_string(matrix.inputs) + " x " + std::to_string(matrix.outputs),
           .parameters = {{"tokens", tokens},
                          {"inputs", matrix.inputs},
                          {"outputs", matrix.outputs}},
           .prepare = [=, &setup] { return prepare_linear(matrix, tokens, setup, shape); }});
    }
  }
  return all;
}

}  // namespace

Op linear_op() {
  return {"linear", "tokens x inputs x outputs, by format of the weights", linear_cases};
}

}  // namespace tessera::bench
