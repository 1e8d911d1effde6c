#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

constexpr int64_t kRank = 16;
constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

// Adapters of one product, with as many rows each.
struct Adapters {
  Matrix matrix;
  int64_t adapters = 0;
  int64_t rows_each = 0;

  int64_t rows() const { return adapters * rows_each; }
};

// One call's operands.
class LowRankRun {
 public:
  LowRankRun(const Adapters& of, WeightFormat format, const Setup& setup)
      : of_(of),
        format_(format),
        backend_(setup.device->backend(setup.isas[0])),
        products_(static_cast<size_t>(of.adapters)),
        pieces_(static_cast<size_t>(of.adapters)),
        memory_(*setup.device,
                {of.rows() * of.matrix.inputs * kFloatBytes, of.adapters * bytes_of_one(),
                 of.rows() * kRank * kFloatBytes, of.rows() * of.matrix.outputs * kFloatBytes},
                setup.memory_bytes) {
    memory_.fill_random(kIn, of.rows() * of.matrix.inputs);
    memory_.fill_random(kOut, of.rows() * of.matrix.outputs);
    point_at(0);
    const std::vector<float> numbers =
        random_floats(kRank * std::max(of.matrix.inputs, of.matrix.outputs));
    for (const LowRankProduct& product : products_) {
      for (const LowRankMatrix& matrix : {product.down, product.parts[0].up}) {
        backend_.pack_low_rank({numbers.data(), matrix.rows, matrix.cols, matrix.cols}, matrix);
      }
    }
    memory_.replicate();
  }

  int64_t cycled_bytes() const { return memory_.bytes(); }

  LowRankArgs next() {
    const int64_t copy = memory_.next();
    point_at(copy);
    const auto rows = [&](Operand operand, int64_t cols) {
      return MatrixView<float>{memory_.operand<float>(copy, operand), of_.rows(), cols, cols};
    };
    return {.in = rows(kIn, of_.matrix.inputs),
            .rows = pieces_,
            .low = rows(kLow, kRank),
            .out = rows(kOut, of_.matrix.outputs)};
  }

 private:
  enum Operand : size_t { kIn, kMatrices, kLow, kOut };

  LowRankMatrix down() const {
    return {LowRankSide::narrows, format_, kRank, of_.matrix.inputs, nullptr};
  }
  LowRankMatrix up() const {
    return {LowRankSide::widens, format_, of_.matrix.outputs, kRank, nullptr};
  }
  int64_t bytes_of_one() const {
    return backend_.low_rank_bytes(down()) + backend_.low_rank_bytes(up());
  }
  void point_at(int64_t copy) {
    auto* data = memory_.operand<std::byte>(copy, kMatrices);
    for (size_t i = 0; i < products_.size(); ++i) {
      LowRankProduct& product = products_[i];
      product = {};
      product.down = down();
      product.down.data = data + static_cast<int64_t>(i) * bytes_of_one();
      product.add({.up = up()});
      product.parts[0].up.data = product.down.data + backend_.low_rank_bytes(product.down);
      const auto first = static_cast<int32_t>(static_cast<int64_t>(i) * of_.rows_each);
      pieces_[i] = {.product = &product,
                    .first_row = first,
                    .count = static_cast<int32_t>(of_.rows_each),
                    .first_low = first};
    }
  }

  Adapters of_;
  WeightFormat format_;
  const Backend& backend_;
  std::vector<LowRankProduct> products_;
  std::vector<LowRankRows> pieces_;
  CycledMemory memory_;
};

std::vector<Variant> prepare_low_rank(const Adapters& of, const Setup& setup) {
  std::vector<Variant> variants;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    const auto run = std::make_shared<LowRankRun>(of, format, setup);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back({.format = std::string(name(format)),
                          .isa = std::string(isa),
                          .peer = {},
                          .cost = op_cost(run->next()),
                          .cycled_bytes = run->cycled_bytes(),
                          .call = [run, &backend, stream = setup.device->stream()] {
                            backend.low_rank(run->next(), stream);
                          }});
    }
  }
  return variants;
}

std::vector<Case> low_rank_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  if (setup.device->backend(setup.isas[0]).low_rank == nullptr) return all;
  for (const Matrix& matrix : {Matrix{"gate_up ", shape.hidden, 2 * int64_t{shape.ffn}},
                               Matrix{"down ", shape.ffn, shape.hidden}}) {
    for (const auto& [adapters, rows_each] : {std::pair{1, 1}, {16, 1}, {1, 128}}) {
      const Adapters of{matrix, adapters, rows_each};
      all.push_back({.label = matrix.name + std::to_string(of.rows()) + " tokens, " +
                              std::to_string(adapters) + " adapters",
                     .parameters = {{"tokens", of.rows()},
                                    {"adapters", of.adapters},
                                    {"rank", kRank},
                                    {"inputs", matrix.inputs},
                                    {"outputs", matrix.outputs}},
                     .prepare = [of, &setup] { return prepare_low_rank(of, setup); }});
    }
  }
  return all;
}

}  // namespace

Op low_rank_op() {
  return {"low_rank", "products of adapters (LoRA)", low_rank_cases};
}

}  // namespace tessera::bench
