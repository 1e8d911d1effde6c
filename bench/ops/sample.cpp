#include <algorithm>
#include <memory>
#include <random>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

enum SampleOperand : size_t { kLogits, kSampled };

struct SampleWay {
  const char* name;
  SampleRow row;
  uint32_t mask = 0;  // the word that a mask repeats; 0: no masks
};

// Inside a JSON string nearly all tokens are allowed, between its parts a few.
constexpr SampleWay kWays[] = {{"greedy", {.temperature = 0}},     {"temperature", {}},
                               {"top_k 50", {.top_k = 50}},        {"top_p 0.95", {.top_p = 0.95f}},
                               {"dense mask", {}, ~uint32_t{1}},   {"half mask", {}, 0x9ac35b16u},
                               {"thin mask", {}, uint32_t{1} << 7}};

// Rows of one call and its operands. Logits are normal with a standard deviation of 3; top_p 0.95
// keeps about a twelfth of them.
class Sampling {
 public:
  Sampling(const SampleWay& way, int64_t rows, const Setup& setup, const Shape& shape)
      : rows_(static_cast<size_t>(rows), way.row),
        vocab_(shape.vocab),
        memory_(*setup.device,
                {rows * vocab_ * int64_t{sizeof(float)}, rows * int64_t{sizeof(SampledToken)}},
                setup.memory_bytes, setup.as_in_model ? 1 : 0),
        masks_(way.mask == 0 ? 0 : static_cast<size_t>(rows * mask_words(vocab_)), way.mask),
        scratch_(*setup.device, scratch_bytes(rows, setup, shape)) {
    std::mt19937_64 random(1);
    for (size_t i = 0; i < rows_.size(); ++i) {
      rows_[i].row = static_cast<int32_t>(i);
      rows_[i].draw = random();
      rows_[i].mask = way.mask == 0 ? -1 : static_cast<int32_t>(i);
    }
    std::vector<float> logits = random_floats(rows * vocab_);
    for (float& logit : logits) {
      logit *= 3;
    }
    memory_.fill(kLogits, logits);
    memory_.replicate();
  }

  SampleArgs next() {
    const int64_t copy = memory_.next();
    const auto rows = static_cast<int64_t>(rows_.size());
    return {.logits = {memory_.operand<float>(copy, kLogits), rows, vocab_, vocab_},
            .rows = rows_,
            .changes = {},
            .masks = masks_,
            .sampled = {memory_.operand<SampledToken>(copy, kSampled), rows_.size()},
            .scratch = scratch_.span()};
  }
  int64_t cycled_bytes() const { return memory_.bytes(); }

 private:
  static int64_t scratch_bytes(int64_t rows, const Setup& setup, const Shape& shape) {
    const SampleLimits limits{static_cast<int32_t>(rows), shape.vocab, 0,
                              static_cast<int32_t>(rows)};
    int64_t bytes = 0;
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      bytes = std::max(bytes, backend.sample_scratch_bytes(limits, setup.device->stream()));
    }
    return bytes;
  }

  std::vector<SampleRow> rows_;
  int64_t vocab_;
  CycledMemory memory_;
  std::vector<uint32_t> masks_;  // [rows, mask_words(vocab)]
  DeviceArray scratch_;
};

std::vector<Variant> prepare_sample(const SampleWay& way, int64_t rows, const Setup& setup,
                                    const Shape& shape) {
  const auto sampling = std::make_shared<Sampling>(way, rows, setup, shape);
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back({.format = "f32",
                        .isa = std::string(isa),
                        .peer = {},
                        .cost = op_cost(sampling->next()),
                        .cycled_bytes = sampling->cycled_bytes(),
                        .call = [sampling, &backend, stream = setup.device->stream()] {
                          backend.sample(sampling->next(), stream);
                        }});
  }
  return variants;
}

std::vector<Case> sample_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const SampleWay& way : kWays) {
    for (const int64_t rows : {1, 32}) {
      all.push_back(
          {.label = std::string(way.name) + " " + std::to_string(rows) + " x " +
                    std::to_string(shape.vocab),
           .parameters = {{"rows", rows}, {"vocab", shape.vocab}},
           .prepare = [=, &setup, &way] { return prepare_sample(way, rows, setup, shape); }});
    }
  }
  return all;
}

}  // namespace

Op sample_op() {
  return {"sample", "rows of logits to tokens", sample_cases};
}

}  // namespace tessera::bench
