#include "models/stored_tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/half.h"
#include "models/gguf/block_types.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints hold little-endian data");

struct TypeInfo {
  const char* name;
  int64_t values;  // of a block; 1: plain elements
  int64_t bytes;   // of a block
  BlockDecoder* decode;
};

constexpr TypeInfo kTypes[] = {
    // in the order of TensorType
    {"F32", 1, 4, nullptr},          {"F16", 1, 2, nullptr},
    {"BF16", 1, 2, nullptr},         {"F64", 1, 8, nullptr},
    {"F8_E4M3", 1, 1, nullptr},      {"F8_E5M2", 1, 1, nullptr},
    {"I64", 1, 8, nullptr},          {"I32", 1, 4, nullptr},
    {"I16", 1, 2, nullptr},          {"I8", 1, 1, nullptr},
    {"U64", 1, 8, nullptr},          {"U32", 1, 4, nullptr},
    {"U16", 1, 2, nullptr},          {"U8", 1, 1, nullptr},
    {"BOOL", 1, 1, nullptr},         {"Q8_0", 32, 34, decode_q8_0},
    {"Q4_0", 32, 18, decode_q4_0},   {"Q4_1", 32, 20, decode_q4_1},
    {"Q5_0", 32, 22, decode_q5_0},   {"Q5_1", 32, 24, decode_q5_1},
    {"Q4_K", 256, 144, decode_q4_k}, {"Q5_K", 256, 176, decode_q5_k},
    {"Q6_K", 256, 210, decode_q6_k}};

constexpr int64_t kMaxBlockValues = 256;

const TypeInfo& info(TensorType type) {
  return kTypes[static_cast<size_t>(type)];
}

template <class Half>
void widen(const std::byte* source, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Half half;
    std::memcpy(&half, source + i * sizeof(half), sizeof(half));  // the source may be unaligned
    out[i] = to_f32(half);
  }
}

// Decodes the blocks that `out` touches; one that it covers only in part is decoded aside.
void decode(const TypeInfo& type, const std::byte* blocks, int64_t first, std::span<float> out) {
  std::array<float, kMaxBlockValues> aside;
  while (!out.empty()) {
    const std::byte* block = blocks + first / type.values * type.bytes;
    const int64_t skipped = first % type.values;
    const int64_t left = std::ssize(out);
    int64_t count = left / type.values * type.values;
    if (skipped == 0 && count > 0) {
      type.decode(block, count / type.values, out.data());
    } else {
      count = std::min(type.values - skipped, left);
      type.decode(block, 1, aside.data());
      std::copy_n(aside.data() + skipped, count, out.data());
    }
    first += count;
    out = out.subspan(static_cast<size_t>(count));
  }
}

// Reads elements in stored order.
void read_stored(const StoredTensor& tensor, int64_t first, std::span<float> out) {
  const TypeInfo& type = info(tensor.type);
  if (type.decode != nullptr) {
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
  return info(type).decode != nullptr;
}

bool is_readable(TensorType type) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16 ||
         is_quantized(type);
}

int64_t bytes_of(TensorType type) {
  TESSERA_CHECK(!is_quantized(type), "values of a block have no bytes of their own");
  return info(type).bytes;
}

std::string shown(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

void read_f32(const StoredTensor& tensor, int64_t first, std::span<float> out) {
  const TypeInfo& type = info(tensor.type);
  const int64_t values = std::ssize(tensor.bytes) / type.bytes * type.values;
  TESSERA_CHECK(is_readable(tensor.type), "tensor type has no conversion to f32");
  TESSERA_CHECK(first >= 0 && first + std::ssize(out) <= values, "elements outside the tensor");
  if (tensor.interleaved_rows == 0) {
    read_stored(tensor, first, out);
    return;
  }
  const int64_t cols = tensor.shape.at(1);
  while (!out.empty()) {
    const int64_t row = first / cols;
    const int64_t col = first % cols;
    const size_t count = std::min(static_cast<size_t>(cols - col), out.size());
    read_stored(tensor, stored_row(row, tensor.interleaved_rows) * cols + col, out.first(count));
    first += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
}

}  // namespace tessera
