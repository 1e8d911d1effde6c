#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

// A mixture of experts in Mixtral's shape: 8 experts, of which each token chooses 2. With shape 8b
// the experts have Mixtral's own sizes.
namespace tessera::bench {
namespace {

constexpr int64_t kExperts = 8;
constexpr int64_t kChosen = 2;
constexpr auto kIdBytes = static_cast<int64_t>(sizeof(int32_t));
constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

// Returns: the first row of each expert and the end, for tokens that choose at random.
std::vector<int32_t> random_offsets(int64_t tokens) {
  std::mt19937 random(1);
  std::vector<int32_t> offsets(kExperts + 1);
  for (int64_t token = 0; token < tokens; ++token) {
    const uint32_t first = random() % kExperts;
    const uint32_t second = (first + 1 + random() % (kExperts - 1)) % kExperts;
    ++offsets[first + 1];
    ++offsets[second + 1];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  return offsets;
}

bool has_experts(const Setup& setup) {
  return setup.device->backend(setup.isas[0]).expert_linear != nullptr;
}

std::string label_of(const std::string& what, int64_t tokens) {
  return what + std::to_string(tokens) + " tokens, " + std::to_string(kChosen) + " of " +
         std::to_string(kExperts) + " experts";
}

// One matrix of all experts.
class ExpertProduct {
 public:
  enum Operand : size_t { kIn, kWeights, kOut };

  ExpertProduct(const Matrix& matrix, int64_t tokens, WeightFormat format, const Setup& setup)
      : matrix_(matrix),
        rows_(tokens * kChosen),
        format_(format),
        bytes_(backend(setup).packed_weight_bytes(format, matrix.outputs, matrix.inputs)),
        offsets_(random_offsets(tokens)),
        memory_(*setup.device,
                {rows_ * matrix.inputs * kFloatBytes, kExperts * bytes_,
                 rows_ * matrix.outputs * kFloatBytes},
                setup.memory_bytes, /*max_copies=*/2),
        scratch_(*setup.device, backend(setup).linear_scratch_bytes(rows_, matrix.inputs)) {
    memory_.fill_random(kIn, rows_ * matrix.inputs);
    const std::vector<float> piece = random_floats(kPackRows * matrix.inputs);
    point_at(0);
    for (const StackedWeight& weight : weights_) {
      for (int64_t row = 0; row < matrix.outputs; row += kPackRows) {
        const int64_t rows = std::min(kPackRows, matrix.outputs - row);
        backend(setup).pack_weight({piece.data(), rows, matrix.inputs, matrix.inputs}, row,
                                   weight.parts[0]);
      }
    }
    memory_.replicate();
  }

  int64_t cycled_bytes() const { return memory_.bytes(); }

  ExpertLinearArgs next() {
    const int64_t copy = memory_.next();
    point_at(copy);
    return {.in = {memory_.operand<float>(copy, kIn), rows_, matrix_.inputs, matrix_.inputs},
            .offsets = offsets_,
            .weights = weights_,
            .out = {memory_.operand<float>(copy, kOut), rows_, matrix_.outputs, matrix_.outputs},
            .scratch = scratch_.span()};
  }

 private:
  static const Backend& backend(const Setup& setup) { return setup.device->backend(setup.isas[0]); }
  void point_at(int64_t copy) {
    auto* data = memory_.operand<std::byte>(copy, kWeights);
    for (size_t expert = 0; expert < weights_.size(); ++expert) {
      weights_[expert].parts[0] = {format_, matrix_.outputs, matrix_.inputs,
                                   data + static_cast<int64_t>(expert) * bytes_};
      weights_[expert].count = 1;
    }
  }

  Matrix matrix_;
  int64_t rows_;
  WeightFormat format_;
  int64_t bytes_;  // of one expert's packed matrix
  std::vector<int32_t> offsets_;
  std::vector<StackedWeight> weights_ = std::vector<StackedWeight>(kExperts);
  CycledMemory memory_;
  DeviceArray scratch_;
};

std::vector<Variant> prepare_linear(const Matrix& matrix, int64_t tokens, const Setup& setup) {
  std::vector<Variant> variants;
  for (const WeightFormat format : setup.weights) {
    const auto product = std::make_shared<ExpertProduct>(matrix, tokens, format, setup);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back({.format = std::string(name(format)),
                          .isa = std::string(isa),
                          .peer = {},
                          .cost = op_cost(product->next()),
                          .arithmetic = format,
                          .cycled_bytes = product->cycled_bytes(),
                          .call = [product, &backend, stream = setup.device->stream()] {
                            backend.expert_linear(product->next(), stream);
                          }});
    }
  }
  return variants;
}

std::vector<Case> linear_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  if (!has_experts(setup)) return all;
  for (const Matrix& matrix : {Matrix{"gate_up ", shape.hidden, 2 * int64_t{shape.ffn}},
                               Matrix{"down ", shape.ffn, shape.hidden}}) {
    for (const int64_t tokens : {1, 32}) {
      all.push_back({.label = label_of(matrix.name, tokens),
                     .parameters = {{"tokens", tokens},
                                    {"experts", kExperts},
                                    {"chosen", kChosen},
                                    {"inputs", matrix.inputs},
                                    {"outputs", matrix.outputs}},
                     .prepare = [=, &setup] { return prepare_linear(matrix, tokens, setup); }});
    }
  }
  return all;
}

// The rows of some tokens, in copies. route writes them, and combine reads them.
class Rows {
 public:
  enum Operand : size_t { kLogits, kOffsets, kTokens, kPlaces, kWeights, kIn, kOut };

  Rows(int64_t tokens, int64_t hidden, const Setup& setup)
      : tokens_(tokens),
        hidden_(hidden),
        memory_(*setup.device,
                {tokens * kExperts * kFloatBytes, (kExperts + 1) * kIdBytes, rows() * kIdBytes,
                 rows() * kIdBytes, rows() * kFloatBytes, rows() * hidden * kFloatBytes,
                 tokens * hidden * kFloatBytes},
                setup.memory_bytes) {
    memory_.fill_random(kLogits, tokens * kExperts);
    memory_.fill_random(kIn, rows() * hidden);
    const Backend& backend = setup.device->backend(setup.isas[0]);
    backend.route(route(), setup.device->stream());
    memory_.replicate();
  }

  int64_t cycled_bytes() const { return memory_.bytes(); }

  RouteArgs route() {
    const int64_t copy = memory_.next();
    return {.logits = {memory_.operand<float>(copy, kLogits), tokens_, kExperts, kExperts},
            .chosen = kChosen,
            .normalise = true,
            .rows = {.offsets = {memory_.operand<int32_t>(copy, kOffsets), kExperts + 1},
                     .tokens = {memory_.operand<int32_t>(copy, kTokens), span_rows()},
                     .places = {memory_.operand<int32_t>(copy, kPlaces), span_rows()},
                     .weights = {memory_.operand<float>(copy, kWeights), span_rows()}}};
  }

  CombineArgs combine() {
    const int64_t copy = memory_.next();
    return {.in = {memory_.operand<float>(copy, kIn), rows(), hidden_, hidden_},
            .places = {memory_.operand<int32_t>(copy, kPlaces), span_rows()},
            .weights = {memory_.operand<float>(copy, kWeights), span_rows()},
            .chosen = kChosen,
            .out = {memory_.operand<float>(copy, kOut), tokens_, hidden_, hidden_}};
  }

 private:
  int64_t rows() const { return tokens_ * kChosen; }
  size_t span_rows() const { return static_cast<size_t>(rows()); }

  int64_t tokens_;
  int64_t hidden_;
  CycledMemory memory_;
};

// `args`: Rows::route or Rows::combine; `op`: the backend's op of these arguments.
template <class Args>
std::vector<Case> row_cases(const Setup& setup, const Shape& shape, Args (Rows::*args)(),
                            void (*Backend::*op)(const Args&, Stream)) {
  std::vector<Case> all;
  if (!has_experts(setup)) return all;
  for (const int64_t tokens : {1, 32}) {
    const auto prepare = [=, &setup, hidden = int64_t{shape.hidden}] {
      const auto rows = std::make_shared<Rows>(tokens, hidden, setup);
      std::vector<Variant> variants;
      for (const std::string_view isa : setup.isas) {
        const Backend& backend = setup.device->backend(isa);
        variants.push_back({.format = "f32",
                            .isa = std::string(isa),
                            .peer = {},
                            .cost = op_cost(((*rows).*args)()),
                            .cycled_bytes = rows->cycled_bytes(),
                            .call = [=, &backend, stream = setup.device->stream()] {
                              (backend.*op)(((*rows).*args)(), stream);
                            }});
      }
      return variants;
    };
    all.push_back({.label = label_of("", tokens),
                   .parameters = {{"tokens", tokens}, {"experts", kExperts}, {"chosen", kChosen}},
                   .prepare = prepare});
  }
  return all;
}

}  // namespace

Op route_op() {
  return {"route", "tokens that choose experts", [](const Setup& setup, const Shape& shape) {
            return row_cases<RouteArgs>(setup, shape, &Rows::route, &Backend::route);
          }};
}

Op expert_linear_op() {
  return {"expert_linear", "each expert's rows by its matrix", linear_cases};
}

Op combine_op() {
  return {"combine", "weighted sums of experts' rows", [](const Setup& setup, const Shape& shape) {
            return row_cases<CombineArgs>(setup, shape, &Rows::combine, &Backend::combine);
          }};
}

}  // namespace tessera::bench
