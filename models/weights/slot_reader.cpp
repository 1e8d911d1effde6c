#include "models/weights/slot_reader.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/quantised_matrix.h"

namespace tessera {
namespace {

// Rows of a part among those asked for.
struct Overlap {
  int64_t from = 0;   // row of the part
  int64_t to = 0;     // row of the result
  int64_t count = 0;  // at most 0: none

  Overlap(const SlotPart& part, int64_t first, int64_t rows) {
    const int64_t part_first = part.expected->first_row;
    const int64_t begin = std::max(first, part_first);
    from = begin - part_first;
    to = begin - first;
    count = std::min(first + rows, part_first + part.expected->rows) - begin;
  }
};

// Has no branch per value, because it reads every weight of a model.
bool all_finite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (const float value : values) {
    found |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1 : 0;
  }
  return found == 0;
}

bool all_finite(const MatrixView<const f16>& values) {
  constexpr uint16_t kExponent = 0x7c00;
  return std::none_of(values.data, values.data + values.rows * values.cols,
                      [](f16 value) { return (value.bits & kExponent) == kExponent; });
}

// Reads rows of a part from its row `first` on, until `out` is full.
void read_floats(const SlotPart& part, int64_t first, std::span<float> out) {
  const TensorShape& shape = part.expected->shape;
  const int64_t cols = part.expected->cols;
  const int64_t stored_cols = shape.size() > 1 ? shape[1] : 1;
  const int64_t at = (part.expected->stored_row + first) * stored_cols + part.expected->stored_col;
  if (stored_cols == cols) {
    read_f32(*part.stored, at, out);
    return;
  }
  const auto width = static_cast<size_t>(cols);
  for (size_t row = 0; row < out.size() / width; ++row) {
    read_f32(*part.stored, at + static_cast<int64_t>(row) * stored_cols,
             out.subspan(row * width, width));
  }
}

}  // namespace

absl::StatusOr<MatrixView<const float>> SlotReader::floats(std::span<const SlotPart> parts,
                                                           int64_t first, int64_t count) {
  const int64_t cols = parts.front().expected->cols;
  floats_.resize(static_cast<size_t>(count * cols));
  for (const SlotPart& part : parts) {
    const Overlap rows(part, first, count);
    if (rows.count <= 0) {
      continue;
    }
    const std::span<float> out(floats_.data() + rows.to * cols,
                               static_cast<size_t>(rows.count * cols));
    read_floats(part, rows.from, out);
    if (part.expected->plus_one && !checkpoint_.is_gguf()) {
      for (float& weight : out) weight += 1;
    }
    drop(part, rows.from, rows.count);
    if (!all_finite(out)) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint_.describe(part.expected->name),
                                                     ": holds a value that is not finite"));
    }
  }
  return MatrixView<const float>{floats_.data(), count, cols, cols};
}

void SlotReader::drop(const SlotPart& part, int64_t first, int64_t rows) const {
  checkpoint_.drop_rows(part.expected->name, part.expected->stored_row + first, rows);
}

absl::Status SlotReader::read_part(const SlotPart& part, int64_t first, int64_t rows,
                                   int64_t to_row) {
  const int64_t stored_row = part.expected->stored_row + first;
  const int64_t cols = part.expected->cols;
  if (part.stored->matrix != nullptr) {
    return read_codes(*part.stored->matrix, {stored_row, rows, part.expected->stored_col, cols},
                      codes_, to_row);
  }
  for (int64_t row = 0; row < rows; ++row) {
    read_codes(*part.stored, stored_row + row, part.expected->stored_col, cols,
               codes_.places(to_row + row));
  }
  const WeightCodes all = codes_.view();
  const auto own = [&](MatrixView<const f16> numbers) {
    return MatrixView<const f16>{numbers.data + to_row * numbers.stride, rows, numbers.cols,
                                 numbers.stride};
  };
  return all_finite(own(all.scales)) &&
                 (!encoding(all.format).minimum || all_finite(own(all.minimums)))
             ? absl::OkStatus()
             : absl::InvalidArgumentError("holds a value that is not finite");
}

absl::StatusOr<WeightCodes> SlotReader::codes(std::span<const SlotPart> parts, int64_t first,
                                              int64_t count) {
  const int64_t cols = parts.front().expected->cols;
  const auto read = std::ranges::find_if(
      parts, [&](const SlotPart& part) { return Overlap(part, first, count).count > 0; });
  codes_.resize(weight_format(*read->stored), count, cols);
  for (const SlotPart& part : parts) {
    const Overlap rows(part, first, count);
    if (rows.count <= 0) {
      continue;
    }
    if (absl::Status status = read_part(part, rows.from, rows.count, rows.to); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(checkpoint_.describe(part.expected->name),
                                                      ": ", status.message()));
    }
    drop(part, rows.from, rows.count);
  }
  return codes_.view();
}

}  // namespace tessera
