#include "server/base/yaml_document.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace tessera {

absl::StatusOr<YAML::Node> load_yaml_document(std::string_view yaml, std::string_view file) {
  const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(yaml));
  for (std::size_t i = 1; i < documents.size(); ++i) {
    if (!documents[i].IsNull()) {
      return absl::InvalidArgumentError(
          fmt::format("{}:{}: is in a second YAML document, after a line '---'; a file has one",
                      file, documents[i].Mark().line + 1));
    }
  }
  return documents.empty() ? YAML::Node() : documents[0];
}

}  // namespace tessera
