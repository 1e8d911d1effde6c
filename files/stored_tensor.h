#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/block_types.h"

namespace tessera {

// Element types of a safetensors file, then the block types of a GGUF file (models/gguf/).
enum class TensorType : uint8_t {
  f32,
  f16,
  bf16,
  f64,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k
};

std::string_view name(TensorType type);  // spelling of the file format: "BF16", "Q4_K"
int64_t block_values(TensorType type);   // values that are stored together; 1: plain elements
int64_t block_bytes(TensorType type);    // bytes of these values
bool is_readable(TensorType type);       // f32, f16, bf16 and all block types
bool is_quantized(TensorType type);      // the block types

// Returns: the weight format that holds the type's numbers exactly.
// Requires: is_readable(type).
WeightFormat weight_format(TensorType type);

// Requires: not is_quantized(type).
int64_t bytes_of(TensorType type);  // bytes per element

struct QuantisedMatrix;

using TensorShape = std::vector<int64_t>;
std::string shown(std::span<const int64_t> shape);  // "[4096, 256]"

// View of one tensor in a file: row-major elements or blocks without any alignment. The bytes are
// not owned.
struct StoredTensor {
  TensorType type = TensorType::f32;
  TensorShape shape;
  std::span<const std::byte> bytes;  // size: product of shape / block_values * block_bytes
  // Rows of a head, if the file pairs neighbouring rows for RoPE: stored row 2 i + j of a head is
  // row j * interleaved_rows / 2 + i of the tensor. 0: rows are stored in order.
  int64_t interleaved_rows = 0;
  // The matrix that the tensor is a part of, if several tensors hold its numbers
  // (models/quantised/). Not owned. `type` and `bytes` are then those of its codes, and `shape` is
  // that of the matrix.
  const QuantisedMatrix* matrix = nullptr;
};

// Returns: true for codes that a weight format can keep: block types, and matrices of several
// tensors.
bool is_quantized(const StoredTensor& tensor);

// Returns: the tensor's type as messages name it: "BF16", "Q4_K", or the format of a matrix of
// several tensors.
std::string_view kept_type(const StoredTensor& tensor);

// Returns: the weight format that holds the tensor's numbers exactly.
// Requires: is_readable(tensor.type), or a matrix of several tensors.
WeightFormat weight_format(const StoredTensor& tensor);

// Converts elements [first, first + out.size()) to f32, in the order of the tensor's rows. Plain
// types are exact; blocks have the bits of the format's reference (files/block_types.h).
// Requires: is_readable(tensor.type) or a matrix of several tensors; the range lies inside.
void read_f32(const StoredTensor& tensor, int64_t first, std::span<float> out);

// Unpacks columns [first_col, first_col + cols) of a row of the tensor, in the order of its rows.
// The places of `out` have room for all of them.
// Requires: is_quantized(tensor.type), two dimensions, whole blocks, no matrix of several tensors.
void read_codes(const StoredTensor& tensor, int64_t row, int64_t first_col, int64_t cols,
                BlockPlaces out);

// Returns: the part of tensor.bytes that holds rows [first, first + rows); of interleaved rows,
// those of the heads that they belong to.
std::span<const std::byte> bytes_of_rows(const StoredTensor& tensor, int64_t first, int64_t rows);

}  // namespace tessera
