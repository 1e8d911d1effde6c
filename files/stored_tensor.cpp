#include "files/stored_tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "files/quantised_matrix.h"
#include "kernels/matrix/half.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints hold little-endian data");

struct TypeInfo {
  const char* name;
  int64_t values;                           // of a block; 1: plain elements
  int64_t bytes;                            // of a block
  BlockUnpacker* unpack;                    // null: plain elements
  WeightFormat format = WeightFormat::f32;  // of readable types
};

constexpr TypeInfo kStoredTypes[] = {
    // in the order of TensorType
    {"F32", 1, 4, nullptr, WeightFormat::f32},
    {"F16", 1, 2, nullptr, WeightFormat::f16},
    {"BF16", 1, 2, nullptr, WeightFormat::bf16},
    {"F64", 1, 8, nullptr},
    {"F8_E4M3", 1, 1, nullptr},
    {"F8_E5M2", 1, 1, nullptr},
    {"I64", 1, 8, nullptr},
    {"I32", 1, 4, nullptr},
    {"I16", 1, 2, nullptr},
    {"I8", 1, 1, nullptr},
    {"U64", 1, 8, nullptr},
    {"U32", 1, 4, nullptr},
    {"U16", 1, 2, nullptr},
    {"U8", 1, 1, nullptr},
    {"BOOL", 1, 1, nullptr},
    {"Q8_0", 32, 34, unpack_q8_0, WeightFormat::int8},
    {"Q4_0", 32, 18, unpack_q4_0, WeightFormat::int4_symmetric},
    {"Q4_1", 32, 20, unpack_q4_1, WeightFormat::int4},
    {"Q5_0", 32, 22, unpack_q5_0, WeightFormat::int5_symmetric},
    {"Q5_1", 32, 24, unpack_q5_1, WeightFormat::int5},
    {"Q4_K", 256, 144, unpack_q4_k, WeightFormat::int4_super},
    {"Q5_K", 256, 176, unpack_q5_k, WeightFormat::int5_super},
    {"Q6_K", 256, 210, unpack_q6_k, WeightFormat::int6_super}};

constexpr int64_t kMaxBlockValues = 256;

const TypeInfo& info(TensorType type) {
  return kStoredTypes[static_cast<size_t>(type)];
}

template <class Half>
void widen(const std::byte* source, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Half half;
    std::memcpy(&half, source + i * sizeof(half), sizeof(half));  // the source may be unaligned
    out[i] = to_f32(half);
  }
}

// One block of any type, unpacked.
struct UnpackedBlock {
  std::array<uint8_t, kMaxBlockValues> codes;
  std::array<int8_t, kMaxBlockValues / 16> scale_factors;
  std::array<int8_t, kMaxBlockValues / 16> minimum_factors;
  f16 scale;
  f16 minimum;

  BlockPlaces places() {
    return {codes.data(), &scale, &minimum, scale_factors.data(), minimum_factors.data()};
  }
};

// Decodes the blocks that `out` touches.
void decode(const TypeInfo& type, const std::byte* blocks, int64_t first, std::span<float> out) {
  UnpackedBlock unpacked;
  std::array<float, kMaxBlockValues> values;
  while (!out.empty()) {
    type.unpack(blocks + first / type.values * type.bytes, unpacked.places());
    decode_block(type.format, unpacked.places(), type.values, values.data());
    const int64_t skipped = first % type.values;
    const int64_t count = std::min(type.values - skipped, std::ssize(out));
    std::copy_n(values.data() + skipped, count, out.data());
    first += count;
    out = out.subspan(static_cast<size_t>(count));
  }
}

// Reads elements in stored order.
void read_stored(const StoredTensor& tensor, int64_t first, std::span<float> out) {
  const TypeInfo& type = info(tensor.type);
  if (type.unpack != nullptr) {
    decode(type, tensor.bytes.data(), first, out);
    return;
  }
  const std::byte* source = tensor.bytes.data() + first * type.bytes;
  switch (tensor.type) {
    case TensorType::f32:
      std::memcpy(out.data(), source, out.size_bytes());
      return;
    case TensorType::f16:
      return widen<f16>(source, out);
    default:
      return widen<bf16>(source, out);
  }
}

int64_t stored_row(int64_t row, int64_t head_rows) {
  const int64_t in_head = row % head_rows;
  const int64_t half = head_rows / 2;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

}  // namespace

std::string_view name(TensorType type) {
  return info(type).name;
}

int64_t block_values(TensorType type) {
  return info(type).values;
}

int64_t block_bytes(TensorType type) {
  return info(type).bytes;
}

bool is_quantized(TensorType type) {
  return info(type).unpack != nullptr;
}

WeightFormat weight_format(TensorType type) {
  TESSERA_CHECK(is_readable(type), "no weight format has the numbers of this type");
  return info(type).format;
}

bool is_readable(TensorType type) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16 ||
         is_quantized(type);
}

int64_t bytes_of(TensorType type) {
  TESSERA_CHECK(!is_quantized(type), "values of a block have no bytes of their own");
  return info(type).bytes;
}

bool is_quantized(const StoredTensor& tensor) {
  return tensor.matrix != nullptr || is_quantized(tensor.type);
}

std::string_view kept_type(const StoredTensor& tensor) {
  return tensor.matrix != nullptr ? name(tensor.matrix->format) : name(tensor.type);
}

WeightFormat weight_format(const StoredTensor& tensor) {
  return tensor.matrix != nullptr ? tensor.matrix->format : weight_format(tensor.type);
}

std::string shown(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

void read_f32(const StoredTensor& tensor, int64_t first, std::span<float> out) {
  if (tensor.matrix != nullptr) {
    read_f32(*tensor.matrix, first, out);
    return;
  }
  const TypeInfo& type = info(tensor.type);
  const int64_t values = std::ssize(tensor.bytes) / type.bytes * type.values;
  TESSERA_CHECK(is_readable(tensor.type), "tensor type has no conversion to f32");
  TESSERA_CHECK(first >= 0 && first + std::ssize(out) <= values, "elements outside the tensor");
  if (tensor.interleaved_rows == 0) {
    read_stored(tensor, first, out);
    return;
  }
  const int64_t cols = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  while (!out.empty()) {
    const int64_t row = first / cols;
    const int64_t col = first % cols;
    const size_t count = std::min(static_cast<size_t>(cols - col), out.size());
    read_stored(tensor, stored_row(row, tensor.interleaved_rows) * cols + col, out.first(count));
    first += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
}

void read_codes(const StoredTensor& tensor, int64_t row, int64_t first_col, int64_t cols,
                BlockPlaces out) {
  const TypeInfo& type = info(tensor.type);
  const int64_t row_values = tensor.shape.at(1);
  TESSERA_CHECK(is_quantized(tensor.type) && tensor.shape.size() == 2, "a tensor without codes");
  TESSERA_CHECK(first_col % type.values == 0 && cols % type.values == 0, "partial blocks");
  TESSERA_CHECK(row < tensor.shape[0] && first_col + cols <= row_values, "outside the tensor");
  const WeightEncoding stored = encoding(type.format);
  const int64_t blocks = type.values / stored.block;
  const int64_t at = tensor.interleaved_rows == 0 ? row : stored_row(row, tensor.interleaved_rows);
  const std::byte* from =
      tensor.bytes.data() + (at * row_values + first_col) / type.values * type.bytes;
  for (int64_t col = 0; col < cols; col += type.values, from += type.bytes) {
    type.unpack(from, out);
    out.codes += type.values;
    ++out.scale;
    out.minimum += stored.minimum ? 1 : 0;
    out.scale_factors += stored.superblock > 0 ? blocks : 0;
    out.minimum_factors += stored.superblock > 0 && stored.minimum ? blocks : 0;
  }
}

std::span<const std::byte> bytes_of_rows(const StoredTensor& tensor, int64_t first, int64_t rows) {
  const int64_t head = std::max<int64_t>(tensor.interleaved_rows, 1);
  const int64_t begin = first / head * head;
  const int64_t end = (first + rows + head - 1) / head * head;
  const int64_t row_bytes = std::ssize(tensor.bytes) / tensor.shape.at(0);
  return tensor.bytes.subspan(static_cast<size_t>(begin * row_bytes),
                              static_cast<size_t>((end - begin) * row_bytes));
}

}  // namespace tessera
