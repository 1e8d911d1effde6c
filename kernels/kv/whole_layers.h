#pragma once

#include <cstdint>

namespace tessera {

// First layers in which every query reads all tiles. Their attention is spread over many tokens.
inline constexpr int32_t kWholeLayers = 2;

}  // namespace tessera
