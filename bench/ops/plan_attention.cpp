#include <memory>

#include "bench/ops/kv_copies.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

struct PlanCase {
  int32_t sequences = 1;
  int32_t context = 0;
  int32_t shared = 0;  // tokens of the context in pages that all sequences share

  std::string label() const {
    return "decode " + std::to_string(sequences) + " x 1 at " + std::to_string(context) +
           (shared > 0 ? " sharing " + std::to_string(shared) : "");
  }
};

// The sequences of a step, and pages of two layers.
class PlannedStep {
 public:
  PlannedStep(const PlanCase& size, const Setup& setup, const Shape& shape)
      : query_heads_(shape.query_heads),
        kv_({.format = kKvF16,
             .head_dim = shape.head_dim,
             .kv_heads = shape.kv_heads,
             .sequences = size.sequences,
             .context = size.context + 1,
             .shared = size.shared,
             .min_layers = 2,
             .max_layers = 2},
            *setup.device, setup.isas[0]),
        plan_(*setup.device, bytes(size, setup)) {
    for (int32_t i = 0; i < size.sequences; ++i) {
      spans_.push_back({i, i, 1, size.context, {}});
    }
  }

  PlanAttentionArgs args() const {
    return {.sequences = spans_,
            .pages = kv_.view(),
            .query_heads = query_heads_,
            .stored = true,
            .plan = plan_.span()};
  }
  int64_t cycled_bytes() const { return kv_.bytes(); }

 private:
  int64_t bytes(const PlanCase& size, const Setup& setup) const {
    return setup.device->backend(setup.isas[0])
        .attention_plan_bytes({size.sequences, size.sequences, size.context + 1}, kv_.layers(),
                              kv_.view().kv_heads, query_heads_);
  }

  int32_t query_heads_;
  KvCopies kv_;
  DeviceArray plan_;
  std::vector<SequenceSpan> spans_;
};

std::vector<Variant> prepare_plan(const PlanCase& size, const Setup& setup, const Shape& shape) {
  const auto step = std::make_shared<PlannedStep>(size, setup, shape);
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back({.format = "f16",
                        .isa = std::string(isa),
                        .peer = {},
                        .cost = op_cost(step->args()),
                        .cycled_bytes = step->cycled_bytes(),
                        .call = [step, &backend, stream = setup.device->stream()] {
                          backend.plan_attention(step->args(), stream);
                        }});
  }
  return variants;
}

// None where `attention` plans for itself.
std::vector<Case> plan_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  if (setup.device->backend(setup.isas[0]).plan_attention == nullptr) {
    return all;
  }
  const int32_t far = shape.context - 1;
  for (const PlanCase& size : {PlanCase{1, far}, PlanCase{32, far}, PlanCase{32, 2303, 2048}}) {
    all.push_back({.label = size.label(),
                   .parameters = {{"sequences", size.sequences},
                                  {"context", size.context},
                                  {"shared", size.shared},
                                  {"kv_heads", shape.kv_heads}},
                   .prepare = [=, &setup] { return prepare_plan(size, setup, shape); }});
  }
  return all;
}

}  // namespace

Op plan_attention_op() {
  return {"plan_attention", "lists of the splits of a step, for two layers", plan_cases};
}

}  // namespace tessera::bench
