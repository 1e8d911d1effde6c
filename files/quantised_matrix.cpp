#include "files/quantised_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/matrix/e4m3.h"

namespace tessera {
namespace {

using Neighbours = StoredIntegers::Neighbours;

uint32_t word_at(const StoredIntegers& from, int64_t index) {
  uint32_t word;
  std::memcpy(&word, from.tensor.bytes.data() + index * 4, sizeof(word));
  return word;
}

// One number of a tensor of words.
int32_t packed_at(const StoredIntegers& from, int64_t output, int64_t input) {
  const int64_t per = from.in_a_word();
  const bool by_inputs = from.packed == Neighbours::inputs;
  const int64_t neighbour = (by_inputs ? input : output) % per;
  const int64_t row = by_inputs ? output : output / per;
  const int64_t col = by_inputs ? input / per : input;
  const int64_t width = from.tensor.shape.at(1);
  const uint32_t word = word_at(from, from.transposed ? col * width + row : row * width + col);
  const auto shift = from.bits * from.place[static_cast<size_t>(neighbour)];
  const uint32_t mask = (1u << from.bits) - 1;
  return static_cast<int32_t>(((word >> shift) + static_cast<uint32_t>(from.added)) & mask);
}

// Bytes of I8 have a sign, which the format's offset takes away. Those of E4M3 stay as they are.
void read_bytes(const StoredIntegers& from, const MatrixPart& part, uint8_t* out) {
  const int64_t width = from.tensor.shape.at(1);
  const uint8_t flipped = from.tensor.type == TensorType::i8 ? 0x80 : 0;
  for (int64_t row = 0; row < part.rows; ++row) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(from.tensor.bytes.data()) +
                        (part.first_row + row) * width + part.first_col;
    std::transform(bytes, bytes + part.cols, out + row * part.cols,
                   [flipped](uint8_t byte) { return static_cast<uint8_t>(byte ^ flipped); });
  }
}

// Reads the numbers of words one word at a time.
class WordReader {
 public:
  WordReader(const StoredIntegers& from, const MatrixPart& part, uint8_t* out)
      : from_(from), part_(part), out_(out), per_(from.in_a_word()) {}

  // Walks the words in the order of the file.
  void read() const {
    const bool by_inputs = from_.packed == Neighbours::inputs;
    const int64_t row_step = by_inputs ? 1 : per_;
    const int64_t col_step = by_inputs ? per_ : 1;
    const int64_t end_row = part_.first_row + part_.rows;
    const int64_t end_col = part_.first_col + part_.cols;
    const int64_t row = part_.first_row / row_step * row_step;
    const int64_t col = part_.first_col / col_step * col_step;
    if (from_.transposed) {
      for (int64_t c = col; c < end_col; c += col_step) {
        for (int64_t r = row; r < end_row; r += row_step) read_word(r, c, by_inputs);
      }
    } else {
      for (int64_t r = row; r < end_row; r += row_step) {
        for (int64_t c = col; c < end_col; c += col_step) read_word(r, c, by_inputs);
      }
    }
  }

 private:
  // The word of `per_` numbers from (row, col) on; those outside the part are left out.
  void read_word(int64_t row, int64_t col, bool by_inputs) const {
    const int64_t width = from_.tensor.shape.at(1);
    const int64_t word_row = by_inputs ? row : row / per_;
    const int64_t word_col = by_inputs ? col / per_ : col;
    const uint32_t word = word_at(
        from_, from_.transposed ? word_col * width + word_row : word_row * width + word_col);
    const uint32_t mask = (1u << from_.bits) - 1;
    for (int64_t i = 0; i < per_; ++i) {
      const int64_t to_row = row - part_.first_row + (by_inputs ? 0 : i);
      const int64_t to_col = col - part_.first_col + (by_inputs ? i : 0);
      if (to_row < 0 || to_row >= part_.rows || to_col < 0 || to_col >= part_.cols) continue;
      const auto shift = from_.bits * from_.place[static_cast<size_t>(i)];
      out_[to_row * part_.cols + to_col] = static_cast<uint8_t>(word >> shift & mask);
    }
  }

  const StoredIntegers& from_;
  const MatrixPart& part_;
  uint8_t* out_;  // [rows, cols]
  int64_t per_;
};

void read_integers(const StoredIntegers& from, const MatrixPart& part, uint8_t* out) {
  if (from.packed == Neighbours::none) {
    read_bytes(from, part, out);
  } else {
    WordReader(from, part, out).read();
  }
}

float scale_at(const StoredScales& scales, int64_t row, int64_t col) {
  const int64_t block_row = row / scales.outputs;
  const int64_t block_col = col / scales.inputs;
  const TensorShape& shape = scales.tensor.shape;
  const int64_t width = shape.size() < 2 ? 1 : shape[1];
  float scale;
  read_f32(scales.tensor,
           scales.transposed ? block_col * width + block_row : block_row * width + block_col,
           {&scale, 1});
  return scale;
}

// Codes in the order of groups.
std::vector<uint8_t> ordered_codes(const QuantisedMatrix& matrix, const MatrixPart& part) {
  std::vector<uint8_t> codes(static_cast<size_t>(part.rows * part.cols));
  read_integers(matrix.codes, part, codes.data());
  if (matrix.input_order.empty()) {
    return codes;
  }
  TESSERA_CHECK(part.cols == matrix.cols, "an order of inputs needs all of them");
  std::vector<uint8_t> ordered(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t col = i % static_cast<size_t>(part.cols);
    ordered[i] = codes[i - col + static_cast<size_t>(matrix.input_order[col])];
  }
  return ordered;
}

constexpr char kNotFinite[] = "holds a value that is not finite";

// Sets a row's scales to f16 numbers times `row_scale`, a power of two.
absl::Status split_scales(std::span<const float> scales, std::span<f16> halves, float& row_scale) {
  float largest = 0;
  for (const float scale : scales) largest = std::max(largest, std::fabs(scale));
  row_scale = 1;
  const auto fits = [&] {
    return std::ranges::all_of(scales, [&](float scale) {
      return to_f32(to_f16(scale / row_scale)) == scale / row_scale;
    });
  };
  if (!fits()) {
    row_scale = std::ldexp(1.0f, std::ilogb(largest) - 15);  // the largest below 2^16
    if (largest / row_scale > kLargestF16 || !fits()) {
      return absl::InvalidArgumentError("has scales that f16 and a power of two do not hold");
    }
  }
  std::ranges::transform(scales, halves.begin(),
                         [&](float scale) { return to_f16(scale / row_scale); });
  return absl::OkStatus();
}

absl::Status set_scales(const QuantisedMatrix& matrix, int64_t first_col, int64_t row,
                        const RowPlaces& out) {
  const WeightEncoding stored = encoding(matrix.format);
  std::vector<float> scales(out.scales.size() +
                            (is_fp8(matrix.format) ? out.row_scales.size() : 0));
  const int64_t group = stored.scale_inputs();
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = scale_at(matrix.scales, row, first_col + static_cast<int64_t>(i) * group);
    if (!std::isfinite(scales[i])) {
      return absl::InvalidArgumentError(kNotFinite);
    }
  }
  if (is_fp8(matrix.format)) {
    std::ranges::copy(scales, out.row_scales.begin());
    return absl::OkStatus();
  }
  if (stored.group == WeightEncoding::kWholeRow) {
    out.row_scales[0] = scales[0];
    out.scales[0] = to_f16(1);
    return absl::OkStatus();
  }
  return split_scales(scales, out.scales, out.row_scales[0]);
}

absl::Status set_zeros(const QuantisedMatrix& matrix, int64_t first_col, int64_t row,
                       const RowPlaces& out) {
  if (out.zeros.empty()) {
    return absl::OkStatus();
  }
  const int64_t first = first_col / encoding(matrix.format).scale_inputs();
  for (size_t i = 0; i < out.zeros.size(); ++i) {
    const int32_t zero = packed_at(matrix.zeros, row, first + static_cast<int64_t>(i));
    if (zero > 127) {
      return absl::InvalidArgumentError("has a zero point beyond 127");
    }
    out.zeros[i] = static_cast<uint8_t>(zero);
  }
  return absl::OkStatus();
}

bool has_nan(std::span<const uint8_t> codes) {
  return std::ranges::any_of(codes, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
}

}  // namespace

absl::Status read_codes(const QuantisedMatrix& matrix, const MatrixPart& part, CodeRows& out,
                        int64_t to_row) {
  const std::vector<uint8_t> codes = ordered_codes(matrix, part);
  if (is_fp8(matrix.format) && has_nan(codes)) {
    return absl::InvalidArgumentError(kNotFinite);
  }
  for (int64_t row = 0; row < part.rows; ++row) {
    const RowPlaces places = out.row(to_row + row);
    std::copy_n(codes.begin() + row * part.cols, part.cols, places.codes.begin());
    TESSERA_RETURN_IF_ERROR(set_scales(matrix, part.first_col, part.first_row + row, places));
    TESSERA_RETURN_IF_ERROR(set_zeros(matrix, part.first_col, part.first_row + row, places));
  }
  return absl::OkStatus();
}

void read_f32(const QuantisedMatrix& matrix, int64_t first, std::span<float> out) {
  const int64_t first_row = first / matrix.cols;
  const int64_t end_row = div_ceil(first + std::ssize(out), matrix.cols);
  const std::vector<uint8_t> codes =
      ordered_codes(matrix, {first_row, end_row - first_row, 0, matrix.cols});
  const WeightEncoding stored = encoding(matrix.format);
  const int64_t group = stored.scale_inputs() == 0 ? matrix.cols : stored.scale_inputs();
  for (int64_t row = first_row; row < end_row; ++row) {
    float scale = 0;
    int32_t zero = stored.offset;
    for (int64_t col = 0; col < matrix.cols; ++col) {
      if (col % group == 0) {
        scale = scale_at(matrix.scales, row, col);
        zero = matrix.has_zeros() ? packed_at(matrix.zeros, row, col / group) : zero;
      }
      const uint8_t code = codes[static_cast<size_t>((row - first_row) * matrix.cols + col)];
      const int64_t input =
          matrix.input_order.empty() ? col : matrix.input_order[static_cast<size_t>(col)];
      const int64_t at = row * matrix.cols + input - first;
      if (at < 0 || at >= std::ssize(out)) continue;
      out[static_cast<size_t>(at)] = is_fp8(matrix.format)
                                         ? to_f32(e4m3{code}) * scale
                                         : scale * static_cast<float>(int32_t{code} - zero);
    }
  }
}

}  // namespace tessera
