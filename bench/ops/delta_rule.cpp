#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

// One sequence of a gated delta network with the heads of the shape's attention.
class DeltaRuleRun {
 public:
  DeltaRuleRun(int64_t tokens, const Setup& setup, const Shape& shape)
      : tokens_(tokens),
        keys_(int64_t{shape.kv_heads} * shape.head_dim),
        values_(int64_t{shape.query_heads} * shape.head_dim),
        heads_(shape.query_heads),
        head_dim_(shape.head_dim),
        sequence_{.slot = 0, .first_row = 0, .count = static_cast<int32_t>(tokens)},
        memory_(*setup.device,
                {floats(tokens * keys_), floats(tokens * keys_), floats(tokens * values_),
                 floats(tokens * heads_), floats(tokens * heads_), floats(values_ * head_dim_),
                 floats(tokens * values_)},
                setup.memory_bytes, setup.as_in_model ? shape.layers : 0) {
    memory_.fill_random(kQueries, tokens * keys_);
    memory_.fill_random(kKeys, tokens * keys_);
    memory_.fill_random(kValues, tokens * values_);
    const auto each = static_cast<size_t>(tokens * heads_);
    memory_.fill(kDecays, std::vector<float>(each, -0.1f));
    memory_.fill(kRates, std::vector<float>(each, 0.5f));
    memory_.fill_random(kStates, values_ * head_dim_);
    memory_.replicate();
  }

  DeltaRuleArgs args() {
    const int64_t copy = memory_.next();
    const auto rows = [&](Operand operand, int64_t cols) {
      return MatrixView<float>{memory_.operand<float>(copy, operand), tokens_, cols, cols};
    };
    const int64_t state = values_ * head_dim_;
    return {.queries = rows(kQueries, keys_),
            .keys = rows(kKeys, keys_),
            .values = rows(kValues, values_),
            .decays = rows(kDecays, heads_),
            .rates = rows(kRates, heads_),
            .sequences = {&sequence_, 1},
            .states = {memory_.operand<float>(copy, kStates), 1, state, state},
            .value_heads = static_cast<int32_t>(heads_),
            .key_dim = static_cast<int32_t>(head_dim_),
            .normalise = true,
            .out = rows(kOut, values_)};
  }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  enum Operand : size_t { kQueries, kKeys, kValues, kDecays, kRates, kStates, kOut };

  static int64_t floats(int64_t count) { return count * int64_t{sizeof(float)}; }

  int64_t tokens_;
  int64_t keys_;
  int64_t values_;
  int64_t heads_;
  int64_t head_dim_;
  StateSpan sequence_;
  CycledMemory memory_;
};

std::vector<Variant> prepare_delta_rule(int64_t tokens, const Setup& setup, const Shape& shape) {
  const auto run = std::make_shared<DeltaRuleRun>(tokens, setup, shape);
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back({.format = "f32",
                        .isa = std::string(isa),
                        .peer = {},
                        .cost = op_cost(run->args()),
                        .cycled_bytes = run->bytes(),
                        .call = [=, &backend, stream = setup.device->stream()] {
                          backend.delta_rule(run->args(), stream);
                        }});
  }
  return variants;
}

std::vector<Case> delta_rule_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  if (setup.device->backend(setup.isas[0]).delta_rule == nullptr) return all;
  for (const int64_t tokens : {1, 32, 512}) {
    all.push_back({.label = std::to_string(tokens) + " tokens, " +
                            std::to_string(shape.query_heads) + " states of " +
                            std::to_string(shape.head_dim),
                   .parameters = {{"tokens", tokens}, {"heads", shape.query_heads}},
                   .prepare = [=, &setup] { return prepare_delta_rule(tokens, setup, shape); }});
  }
  return all;
}

}  // namespace

Op delta_rule_op() {
  return {"delta_rule", "recurrence of a gated delta network", delta_rule_cases};
}

}  // namespace tessera::bench
