#include "server/base/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"

namespace tessera {

absl::StatusOr<int64_t> parse_quantity(std::string_view text, std::span<const QuantityUnit> units,
                                       int64_t plain) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view suffix = text.substr(digits);
  int64_t size = suffix.empty() ? plain : 0;
  std::vector<std::string> names;
  for (const QuantityUnit& unit : units) {
    names.emplace_back(unit.name);
    size = suffix == unit.name ? unit.size : size;
  }
  int64_t count = 0;
  if (!absl::SimpleAtoi(std::string(text.substr(0, digits)), &count) || size == 0) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not a whole number, optionally with {}",
                                                  text, absl::StrJoin(names, ", ")));
  }
  if (count > std::numeric_limits<int64_t>::max() / size) {
    return absl::InvalidArgumentError(fmt::format("'{}' is too large", text));
  }
  return count * size;
}

std::string print_quantity(int64_t value, std::span<const QuantityUnit> units) {
  for (const QuantityUnit& unit : units) {
    if (value != 0 && value % unit.size == 0) {
      return fmt::format("{}{}", value / unit.size, unit.name);
    }
  }
  return "0";
}

}  // namespace tessera
