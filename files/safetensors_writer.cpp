#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "files/safetensors.h"
#include "kernels/matrix/view.h"
#include "nlohmann/json.hpp"

namespace tessera {

absl::Status write_safetensors(const std::filesystem::path& path,
                               std::span<const NamedTensor> tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};  // required by transformers
  size_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    TESSERA_CHECK(!header.contains(tensor.name), "two tensors of one name");
    header[tensor.name] = {{"dtype", std::string(name(tensor.type))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  const uint64_t length = text.size();

  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const NamedTensor& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.bytes.data()),
               static_cast<std::streamsize>(tensor.bytes.size()));
  }
  file.close();
  if (!file) {
    return absl::UnavailableError(absl::StrCat(path.string(), ": cannot be written"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
