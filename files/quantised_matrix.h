#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "files/code_rows.h"
#include "files/stored_tensor.h"
#include "kernels/matrix/weight.h"

namespace tessera {

// Integers in a tensor of a safetensors file: [outputs, inputs] or, transposed, [inputs, outputs].
// Neighbours share a 32-bit word, or each has a byte (I8, F8_E4M3).
struct StoredIntegers {
  enum class Neighbours : uint8_t { none, inputs, outputs };

  StoredTensor tensor = {};
  int64_t bits = 8;
  Neighbours packed = Neighbours::none;
  bool transposed = false;
  std::array<uint8_t, 8> place = {0, 1, 2, 3, 4, 5, 6, 7};  // of each neighbour in a word
  int32_t added = 0;  // to each number as it is stored, modulo 2^bits

  int64_t in_a_word() const { return packed == Neighbours::none ? 1 : 32 / bits; }
};

// Scales of blocks of outputs by inputs: [outputs / block, inputs / block], or transposed.
struct StoredScales {
  StoredTensor tensor = {};  // F16, BF16 or F32
  int64_t outputs = 1;       // of a block
  int64_t inputs = 1;        // of a block
  bool transposed = false;
};

// A weight whose integers and scales are tensors of their own. Not owned: the bytes.
//   weight = scale * (code - zero); without zeros the format's offset takes their place
struct QuantisedMatrix {
  WeightFormat format = WeightFormat::int4_group128;  // holds the numbers exactly
  int64_t rows = 0;                                   // outputs
  int64_t cols = 0;                                   // inputs
  StoredIntegers codes;
  StoredIntegers zeros;  // one for each scale; without bytes: none
  StoredScales scales;
  // [cols]: input i of the codes in the order of groups is input input_order[i] of the model
  // (act-order). Empty: in order.
  std::vector<int32_t> input_order;

  bool has_zeros() const { return !zeros.tensor.bytes.empty(); }
};

// Rows of a matrix, in the order of its groups.
struct MatrixPart {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_col = 0;
  int64_t cols = 0;
};

// Reads codes, scales and zeros into rows [to_row, to_row + part.rows) of `out`.
// Requires: columns start at a group; all of them if the matrix has an input order.
// Errors: InvalidArgument for a scale or weight that is not finite, or a zero point beyond 127. The
// same for scales of one output that are no common power of two times numbers of f16. Scales of f16
// and, in a reach of 2^32 between those of one output, of bf16 are such numbers.
absl::Status read_codes(const QuantisedMatrix& matrix, const MatrixPart& part, CodeRows& out,
                        int64_t to_row);

// Converts elements [first, first + out.size()) of the matrix to f32, in the model's order.
void read_f32(const QuantisedMatrix& matrix, int64_t first, std::span<float> out);

}  // namespace tessera
