#include "engine/tier/checkpoint_digest.h"

#include <xxhash.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/mapped_file.h"

namespace tessera {
namespace {

// A part of a file that is read before its pages are let go.
constexpr size_t kPart = size_t{16} << 20;

uint64_t digest_of(const MappedFile& file) {
  uint64_t digest = file.bytes().size();
  for (size_t first = 0; first < file.bytes().size(); first += kPart) {
    const auto part = file.bytes().subspan(first, std::min(kPart, file.bytes().size() - first));
    digest = XXH3_64bits_withSeed(part.data(), part.size(), digest);
    file.drop_pages(part);
  }
  return digest;
}

}  // namespace

absl::StatusOr<std::string> checkpoint_digest(const std::filesystem::path& model) {
  static const std::set<std::string> kKinds = {".safetensors", ".gguf", ".json"};
  std::vector<std::filesystem::path> files;
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) {
    files.push_back(model);
  }
  for (const auto& file : std::filesystem::directory_iterator(model, error)) {
    if (kKinds.contains(file.path().extension().string())) {
      files.push_back(file.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string digest;
  for (const std::filesystem::path& path : files) {
    TESSERA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    const std::string name = files.size() == 1 ? std::string() : path.filename().string();
    absl::StrAppend(&digest, name, ":", absl::Hex(digest_of(file)), " ");
  }
  return digest;
}

}  // namespace tessera
