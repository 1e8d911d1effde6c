#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/mapped_file.h"

namespace tessera {

// Element types of a safetensors file. Only the first three can be read as weights.
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
  boolean
};

std::string_view name(TensorType type);  // spelling of the file format: "BF16"
int64_t bytes_of(TensorType type);       // bytes per element
bool is_readable(TensorType type);       // f32, f16, bf16

using TensorShape = std::vector<int64_t>;
std::string shown(std::span<const int64_t> shape);  // "[4096, 256]"

// View of one tensor in a file: row-major elements without any alignment. The bytes are not owned.
struct StoredTensor {
  TensorType type = TensorType::f32;
  TensorShape shape;
  std::span<const std::byte> bytes;  // size: product of shape times bytes_of(type)
};

// Converts elements [first, first + out.size()) to f32 without rounding.
// Requires: is_readable(tensor.type); the range lies inside the tensor.
void read_f32(const StoredTensor& tensor, int64_t first, std::span<float> out);

// One .safetensors file, mapped into memory:
//
//   [ u64 header length | header: JSON, name -> dtype, shape, data_offsets | data ]
//
// open() checks everything, so tensors are read without further checks: the header's JSON and
// types, and each tensor's bytes against its shape. The tensors must cover the data without gaps
// and without overlap, as the format requires.
class SafetensorsFile {
 public:
  // Errors: NotFound, PermissionDenied, InvalidArgument; each names the file, and the tensor if it
  // concerns one.
  static absl::StatusOr<SafetensorsFile> open(const std::filesystem::path& path);

  // Returns: null if there is no such tensor. Not owned; valid as long as this file.
  const StoredTensor* find(std::string_view tensor_name) const;
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  SafetensorsFile(std::filesystem::path path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status parse();

  std::filesystem::path path_;
  MappedFile file_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// A tensor to write. The bytes are little-endian elements in row-major order.
struct NamedTensor {
  std::string name;
  TensorType type = TensorType::f32;
  TensorShape shape;
  std::vector<std::byte> bytes;
};

// Writes a file that SafetensorsFile and Hugging Face's library can read.
// Requires: names are distinct; bytes fit the shapes.
// Errors: Unavailable if writing fails.
absl::Status write_safetensors(const std::filesystem::path& path,
                               std::span<const NamedTensor> tensors);

}  // namespace tessera
