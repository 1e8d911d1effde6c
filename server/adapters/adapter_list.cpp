#include "server/adapters/adapter_list.h"

#include <fmt/format.h>

#include <set>
#include <utility>

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
      return absl::InvalidArgumentError(fmt::format("'{}' is not NAME=PATH", entry));
    }
    if (!seen.insert(parts.first).second) {
      return absl::InvalidArgumentError(fmt::format("'{}' stands there twice", parts.first));
    }
    adapters.push_back({parts.first, parts.second});
  }
  return adapters;
}

}  // namespace tessera
