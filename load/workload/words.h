#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "load/request/variates.h"

namespace tessera::load {

// Returns: `count` common English words, separated by spaces.
std::string write_words(SeededRandom& random, int32_t count);

// A fact that a prompt tells and asks for.
struct PlantedKey {
  std::string owner;
  std::string value;  // five digits
};

// Returns: `count` keys of different owners.
// Requires: count is at most kMaxPlantedKeys.
std::vector<PlantedKey> draw_keys(SeededRandom& random, int32_t count);
inline constexpr int32_t kMaxPlantedKeys = 24;

}  // namespace tessera::load
