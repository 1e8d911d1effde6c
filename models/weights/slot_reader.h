#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "files/code_rows.h"
#include "kernels/matrix/view.h"
#include "models/checkpoint/checkpoint.h"
#include "models/weights/tensor_table.h"

namespace tessera {

// A tensor of the checkpoint and its place in a slot. Not owned.
struct SlotPart {
  const StoredTensor* stored = nullptr;
  const ExpectedTensor* expected = nullptr;
};

// Reads rows of a slot, some at a time, so that there is never a second copy of the model. Pages of
// the checkpoint are dropped behind it.
class SlotReader {
 public:
  // Neither is owned.
  explicit SlotReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Returns: rows [first, first + count) as f32, [count, cols]. Valid until the next call.
  // Errors: InvalidArgument for a value that is not finite.
  absl::StatusOr<MatrixView<const float>> floats(std::span<const SlotPart> parts, int64_t first,
                                                 int64_t count);

  // Returns: the same rows as the integers of the checkpoint. Valid until the next call.
  // Requires: the parts that have these rows have the same weight format.
  // Errors: InvalidArgument for a scale that is not finite, and those of read_codes.
  absl::StatusOr<WeightCodes> codes(std::span<const SlotPart> parts, int64_t first, int64_t count);

 private:
  // Reads rows of a part as codes into row `to_row`. Errors: without the tensor's name.
  absl::Status read_part(const SlotPart& part, int64_t first, int64_t rows, int64_t to_row);
  void drop(const SlotPart& part, int64_t first, int64_t rows) const;

  const Checkpoint& checkpoint_;
  std::vector<float> floats_;
  CodeRows codes_;
};

}  // namespace tessera
