#include "server/adapters/adapter_list.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {

absl::StatusOr<std::vector<NamedAdapter>> parse_adapters(std::string_view text) {
  std::vector<NamedAdapter> adapters;
  std::set<std::string> seen;
  const std::vector<std::string> entries =
      absl::StrSplit(std::string(text), ',', absl::SkipEmpty());
  for (const std::string& entry : entries) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("'", entry, "' is not NAME=PATH"));
    }
    if (!seen.insert(parts.first).second) {
      return absl::InvalidArgumentError(absl::StrCat("'", parts.first, "' stands there twice"));
    }
    adapters.push_back({parts.first, parts.second});
  }
  return adapters;
}

}  // namespace tessera
