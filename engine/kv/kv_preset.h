#pragma once

#include <array>
#include <string_view>

#include "kernels/kv_format.h"

namespace tessera {

// A way to keep keys and values, by name.
struct KvPreset {
  std::string_view name;
  KvFormat high;
  KvFormat low;  // the same as `high` where there is one tier only

  friend constexpr bool operator==(const KvPreset&, const KvPreset&) = default;
};

constexpr KvPreset uniform_kv(std::string_view name, KvFormat format) {
  return {name, format, format};
}

inline constexpr std::array kKvPresets{
    uniform_kv("f32", kKvF32),   uniform_kv("f16", kKvF16),   uniform_kv("k8v8", kKvK8V8),
    uniform_kv("k8v4", kKvK8V4), uniform_kv("k4v4", kKvK4V4), uniform_kv("k4v2", kKvK4V2),
};
inline constexpr KvPreset kKvPresetF32 = kKvPresets[0];
inline constexpr KvPreset kKvPresetF16 = kKvPresets[1];

}  // namespace tessera
