#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

struct QuantityUnit {
  std::string_view name;
  int64_t size;
};
inline constexpr std::array<QuantityUnit, 5> kByteUnits{{{"TiB", int64_t{1} << 40},
                                                         {"GiB", int64_t{1} << 30},
                                                         {"MiB", int64_t{1} << 20},
                                                         {"KiB", int64_t{1} << 10},
                                                         {"B", 1}}};
inline constexpr std::array<QuantityUnit, 3> kTimeUnits{{{"m", 60'000}, {"s", 1'000}, {"ms", 1}}};

// Returns: "2GiB" as a number of the smallest unit. A number without a unit is multiplied by
// `plain`.
// Errors: InvalidArgument for a text that is no such number, or too large a number.
absl::StatusOr<int64_t> parse_quantity(std::string_view text, std::span<const QuantityUnit> units,
                                       int64_t plain);

// Returns: `value` in the largest unit that represents it exactly.
std::string print_quantity(int64_t value, std::span<const QuantityUnit> units);

}  // namespace tessera
