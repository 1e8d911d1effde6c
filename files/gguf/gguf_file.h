#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "files/gguf/byte_reader.h"
#include "files/gguf/gguf_value.h"
#include "files/mapped_file.h"
#include "files/stored_tensor.h"

namespace tessera {

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

// One .gguf file of version 2 or 3, mapped into memory:
//
//   [ "GGUF" | version | counts | metadata: key, type, value | tensors: name, extents, type, offset
//     | padding | data ]
//
// open() checks everything, so tensors are read without further checks: every length and count
// against the bytes that are there, each tensor's type and blocks against its shape, and that no
// two tensors overlap.
class GgufFile {
 public:
  // Errors: NotFound, PermissionDenied, InvalidArgument; Unimplemented for another version, byte
  // order or tensor type. Each names the file, and the key or tensor if it concerns one.
  static absl::StatusOr<GgufFile> open(const std::filesystem::path& path);

  // Tensors by the file's own names. Shapes are in row-major order, rows first. Not owned.
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const GgufMetadata& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return path_; }
  const MappedFile& mapped() const { return file_; }

  static constexpr uint64_t kMaxKeys = uint64_t{1} << 16;
  static constexpr uint64_t kMaxTensors = uint64_t{1} << 18;

 private:
  GgufFile(std::filesystem::path path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status parse();
  absl::Status parse_metadata(ByteReader& reader, uint64_t keys);
  absl::Status parse_tensors(ByteReader& reader, uint64_t tensors);
  absl::StatusOr<uint64_t> alignment() const;

  std::filesystem::path path_;
  MappedFile file_;
  GgufMetadata metadata_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace tessera
