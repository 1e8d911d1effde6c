#pragma once

#include <cstdint>

#include "kernels/kv/kv_page.h"

namespace tessera {

// Replaces the scores of a window by their mean (KvPooling::window). The sum has one order, for
// equal bits on every backend.
constexpr void pool_window(KvTokenScore* window, int32_t tokens) {
  float sum = 0;
  for (int32_t i = 0; i < tokens; ++i) {
    sum += window[i].score;
  }
  const float mean = sum / static_cast<float>(tokens);
  for (int32_t i = 0; i < tokens; ++i) {
    window[i].score = mean;
  }
}

}  // namespace tessera
