#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "files/mapped_file.h"
#include "files/stored_tensor.h"

namespace tessera {

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
  const MappedFile& mapped() const { return file_; }

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
