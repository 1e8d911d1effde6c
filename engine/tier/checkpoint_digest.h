#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// Returns: a digest of the model's files, for KvTierOptions::checkpoint: a GGUF file, or in a
// directory all weights and JSON files with their names. Reads all of their bytes.
// Errors: those of MappedFile::open.
absl::StatusOr<std::string> checkpoint_digest(const std::filesystem::path& model);

}  // namespace tessera
