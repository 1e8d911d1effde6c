#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/row_tokens.h"
#include "kernels/cpu/attention/sketch_query.h"

namespace tessera {

// Tiles that the rows of a step read. A row is one (sequence, KV head), with the index sequence *
// kv_heads + KV head. `args` and `scratch` are not owned and must outlive this.
class TileSelection {
 public:
  // Returns: bytes of scratch for rows of `context` stored tokens, each with `heads` query heads. A
  // multiple of 64.
  static int64_t scratch_bytes(int64_t rows, int64_t heads, int32_t context);

  // Requires: `scratch` has scratch_bytes(rows of the step, gqa_ratio, longest context) bytes, or
  // no sequence selects.
  TileSelection(const AttentionArgs& args, std::byte* scratch);

  int64_t bytes() const { return any_ ? scratch_bytes(rows(), heads(), longest_) : 0; }
  int64_t rows() const { return std::ssize(args_.sequences) * args_.pages.kv_heads; }
  bool any() const { return any_; }
  // Chooses the tiles of a row, if its sequence selects tiles. Rows may be chosen at the same time.
  void choose(int64_t row, SketchKernel kernel) const;

  // As row_tokens(), with the list of tiles. Before choose(), the list has its length alone.
  RowTokens tokens(int64_t row, int64_t first_dense, int32_t group) const;

 private:
  const SequenceSpan& span(int64_t row) const {
    return args_.sequences[static_cast<size_t>(row / args_.pages.kv_heads)];
  }
  int32_t heads() const { return args_.query_heads / args_.pages.kv_heads; }  // gqa_ratio
  int32_t* list(int64_t row) const;
  float* ranks(int64_t row) const;  // then estimates: [query heads, tiles]

  const AttentionArgs& args_;
  int32_t* lists_;  // [rows, tiles of the longest context], then ranks and estimates of each row
  int32_t longest_ = 0;
  bool any_ = false;
};

}  // namespace tessera
