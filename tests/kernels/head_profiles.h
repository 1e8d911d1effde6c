#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv/head_profile.h"

namespace tessera {

// Returns: profiles of rows in no order.
inline std::vector<HeadProfile> uneven_head_profiles(int64_t rows) {
  std::vector<HeadProfile> profiles;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t place = rows - 1 - (row + rows / 2) % rows;
    profiles.push_back({.place = static_cast<float>(place) / static_cast<float>(rows)});
  }
  return profiles;
}

}  // namespace tessera
