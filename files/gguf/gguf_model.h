#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "files/gguf/gguf_file.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Numbers of tokenizer.ggml.token_type, which are those of sentencepiece.
inline constexpr int kGgufNormalToken = 1;
inline constexpr int kGgufControlToken = 3;
inline constexpr int kGgufUserDefinedToken = 4;
inline constexpr int kGgufLastTokenType = 6;

// Returns: the GGUF file that a model's path names: the path itself if it is a file, or the only
// .gguf file (of a split model, the first) of a directory without config.json; nullopt if the path
// is any other directory or does not exist.
// Errors: InvalidArgument if a directory has several .gguf files; the message has their names.
absl::StatusOr<std::optional<std::filesystem::path>> find_gguf(const std::filesystem::path& path);

// A model in one GGUF file, or split over files NAME-00001-of-0000N.gguf. The metadata is that of
// the first file.
class GgufModel {
 public:
  // Opens the file; if it is the first of a split model, also the others.
  // Errors: those of GgufFile::open; InvalidArgument if the files of a split model do not fit
  // together, or if `path` is not the first one.
  static absl::StatusOr<GgufModel> open(const std::filesystem::path& path);

  const std::vector<GgufFile>& files() const { return files_; }
  const std::filesystem::path& path() const { return files_.front().path(); }

  // Returns: the value of a key as JSON; null if there is no such key.
  // Errors: InvalidArgument for a list that is too long; names file and key.
  absl::StatusOr<nlohmann::json> value(std::string_view key) const;

  // Returns: the elements of a list of strings, views of the file; none if there is no such key.
  // Errors: InvalidArgument for any other value, or a list that is too long; names file and key.
  absl::StatusOr<std::vector<std::string_view>> texts(std::string_view key) const;

  // Returns: an object with the key and value of every metadata entry that is not large.
  const nlohmann::json& fields() const { return fields_; }

  // Returns: the tensor of that name in the first file that has it; null if there is none.
  const StoredTensor* find_tensor(std::string_view name) const;

 private:
  GgufModel() = default;
  const GgufValue* find(std::string_view key) const;  // null: there is none
  absl::Status named(std::string_view key, const absl::Status& status) const;
  absl::Status read_fields();
  absl::Status open_splits();

  std::vector<GgufFile> files_;
  nlohmann::json fields_;
};

}  // namespace tessera
