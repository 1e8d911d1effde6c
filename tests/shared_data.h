#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace tessera {

// Folder of corpora, tokenizers and small models that some tests compare with. It is not part of
// the repository. TESSERA_SHARED_DATA sets it; the default is ../shared/data beside the source
// tree.
inline std::optional<std::filesystem::path> shared_data(const std::filesystem::path& file) {
  const char* named = std::getenv("TESSERA_SHARED_DATA");
  const std::filesystem::path folder =
      named != nullptr ? std::filesystem::path(named)
                       : std::filesystem::path(TESSERA_SOURCE_DIR) / ".." / "shared" / "data";
  const std::filesystem::path path = folder / file;
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  return path;
}

}  // namespace tessera

// For test bodies: skips the test, visibly, if the data folder does not exist.
#define TESSERA_SHARED_DATA_OR_SKIP(variable, file)                           \
  const auto variable##_found = tessera::shared_data(file);                   \
  if (!variable##_found) GTEST_SKIP() << "no shared data folder: " << (file); \
  const std::filesystem::path& variable = *variable##_found
