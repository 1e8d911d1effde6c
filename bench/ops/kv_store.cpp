#include <memory>

#include "bench/cycled_memory.h"
#include "bench/ops/kv_copies.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;
constexpr int32_t kContext = 1024;  // tokens of each sequence's pages

struct StoreCase {
  int32_t sequences = 1;
  int32_t count = 1;  // new tokens of each sequence
};

// New keys and values, and pages for them. Calls go through all layers first, and then advance in
// the context by a whole tile of tokens. They advance by a tile even if they store a single token:
// the tokens of a tile share cache lines, which would still be cached. A single token goes to the
// residual buffer only. A chunk closes its groups.
class StoreStep {
 public:
  StoreStep(const StoreCase& size, KvFormat format, const Setup& setup, const Shape& shape)
      : size_(size),
        width_(shape.kv_width()),
        stride_(static_cast<int32_t>(round_up(size.count, kTile))),
        kv_({.format = format,
             .head_dim = shape.head_dim,
             .kv_heads = shape.kv_heads,
             .sequences = size.sequences,
             .context = kContext,
             // A step of single tokens accesses the whole tile of its keys, but one row of 16 of
             // its values.
             .at_least = setup.memory_bytes * 2,
             .max_layers = setup.as_in_model ? shape.layers : 0},
            *setup.device, setup.isas[0]),
        rows_(*setup.device, {row_bytes(), row_bytes()},
              setup.as_in_model ? 0 : setup.memory_bytes),
        dense_(kv_.dense(int64_t{size.sequences} * (size.count / kKvGroup))) {
    rows_.fill_random(0, rows() * width_);
    rows_.fill_random(1, rows() * width_);
    rows_.replicate();
    spans_.resize(static_cast<size_t>(size.sequences));
  }

  int64_t cycled_bytes() const { return kv_.bytes() + rows_.bytes(); }

  KvStoreArgs next() {
    const int32_t layer = static_cast<int32_t>(call_ % kv_.layers());
    const int32_t context = context_of(call_++);
    for (int32_t i = 0; i < size_.sequences; ++i) {
      spans_[static_cast<size_t>(i)] = {i, i * size_.count, size_.count, context, {}};
    }
    const int64_t copy = rows_.next();
    return {.keys = {rows_.operand<float>(copy, 0), rows(), width_, width_},
            .values = {rows_.operand<float>(copy, 1), rows(), width_, width_},
            .sequences = spans_,
            .pages = kv_.view(),
            .layer = layer,
            .dense = dense_.span()};
  }

  // Sets the rows to the lengths that the next call of each layer requires, because chunks close
  // groups.
  void restore() {
    std::vector<int32_t> contexts(static_cast<size_t>(kv_.layers()));
    for (int64_t call = call_; call < call_ + kv_.layers(); ++call) {
      contexts[static_cast<size_t>(call % kv_.layers())] = context_of(call);
    }
    kv_.set_contexts(contexts);
  }
  int64_t calls_of_a_round() const { return kv_.layers(); }

 private:
  int32_t context_of(int64_t call) const {
    return static_cast<int32_t>(call / kv_.layers() % (kContext / stride_)) * stride_;
  }
  int64_t rows() const { return int64_t{size_.sequences} * size_.count; }
  int64_t row_bytes() const { return rows() * width_ * int64_t{sizeof(float)}; }

  StoreCase size_;
  int64_t width_;
  int32_t stride_;
  int64_t call_ = 0;
  KvCopies kv_;
  CycledMemory rows_;
  std::vector<SequenceSpan> spans_;
  DeviceArray dense_;
};

std::vector<Variant> prepare_store(const StoreCase& size, const Setup& setup, const Shape& shape) {
  std::vector<Variant> variants;
  for (const KvFormatName& kv : setup.kv) {
    const auto step = std::make_shared<StoreStep>(size, kv.format, setup, shape);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back(
          {.format = std::string(kv.name),
           .isa = std::string(isa),
           .peer = {},
           .cost = op_cost(step->next()),
           .cycled_bytes = step->cycled_bytes(),
           .call = [step, &backend,
                    stream = setup.device->stream()] { backend.kv_store(step->next(), stream); },
           .restore = [step] { step->restore(); },
           .max_calls = step->calls_of_a_round()});
    }
  }
  return variants;
}

std::vector<Case> store_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const StoreCase& size : {StoreCase{1, 1}, StoreCase{32, 1}, StoreCase{1, 512}}) {
    all.push_back({.label = (size.count == 1 ? "decode " : "prefill ") +
                            std::to_string(size.sequences) + " x " + std::to_string(size.count),
                   .parameters = {{"sequences", size.sequences},
                                  {"tokens", size.count},
                                  {"kv_heads", shape.kv_heads},
                                  {"head_dim", shape.head_dim}},
                   .prepare = [=, &setup] { return prepare_store(size, setup, shape); }});
  }
  return all;
}

}  // namespace

Op kv_store_op() {
  return {"kv_store", "a step's keys and values into pages of one layer", store_cases};
}

}  // namespace tessera::bench
