#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

// A table larger than the caches. Its rows are read in a random order that repeats no row before
// all were read.
class EmbeddingTable {
 public:
  EmbeddingTable(int64_t tokens, int64_t element_bytes, const Setup& setup, const Shape& shape)
      : tokens_(tokens),
        hidden_(shape.hidden),
        element_bytes_(element_bytes),
        rows_(rows_of(setup, shape)),
        table_(*setup.device, rows_ * hidden_ * element_bytes),
        out_(*setup.device, {tokens * hidden_ * int64_t{sizeof(float)}},
             setup.as_in_model ? 0 : setup.memory_bytes),
        order_(static_cast<size_t>(rows_)) {
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(1));
  }

  int64_t cycled_bytes() const { return table_.size() + out_.bytes(); }

  EmbedArgs next() {
    at_ = at_ + tokens_ <= rows_ ? at_ : 0;
    const std::span<const int32_t> tokens(order_.data() + at_, static_cast<size_t>(tokens_));
    at_ += tokens_;
    EmbedArgs args{.tokens = tokens,
                   .table = {},
                   .table_f32 = {},
                   .out = {out_.operand<float>(out_.next(), 0), tokens_, hidden_, hidden_}};
    if (element_bytes_ == sizeof(float)) {
      args.table_f32 = {table_.as<float>(), rows_, hidden_, hidden_};
    } else {
      args.table = {table_.as<bf16>(), rows_, hidden_, hidden_};
    }
    return args;
  }

 private:
  int64_t rows_of(const Setup& setup, const Shape& shape) const {
    const int64_t vocab = std::max<int64_t>(shape.vocab, tokens_);
    return setup.as_in_model
               ? vocab
               : std::max(vocab, div_ceil(setup.memory_bytes, hidden_ * element_bytes_));
  }

  int64_t tokens_;
  int64_t hidden_;
  int64_t element_bytes_;
  int64_t rows_;
  int64_t at_ = 0;
  DeviceArray table_;
  CycledMemory out_;
  std::vector<int32_t> order_;
};

std::vector<Variant> prepare_embed(int64_t tokens, const Setup& setup, const Shape& shape) {
  std::vector<Variant> variants;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    const auto table =
        std::make_shared<EmbeddingTable>(tokens, format == WeightFormat::f32 ? 4 : 2, setup, shape);
    for (const std::string_view isa : setup.isas) {
      const Backend& backend = setup.device->backend(isa);
      variants.push_back({.format = std::string(name(format)),
                          .isa = std::string(isa),
                          .peer = {},
                          .cost = op_cost(table->next()),
                          .cycled_bytes = table->cycled_bytes(),
                          .call = [table, &backend, stream = setup.device->stream()] {
                            backend.embed(table->next(), stream);
                          }});
    }
  }
  return variants;
}

std::vector<Case> embed_cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const int64_t tokens : {1, 32, 512}) {
    all.push_back({.label = std::to_string(tokens) + " x " + std::to_string(shape.hidden),
                   .parameters = {{"tokens", tokens}, {"hidden", shape.hidden}},
                   .prepare = [=, &setup] { return prepare_embed(tokens, setup, shape); }});
  }
  return all;
}

}  // namespace

Op embed_op() {
  return {"embed", "rows of a table, at random", embed_cases};
}

}  // namespace tessera::bench
