#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/kv/kv_policy.h"

namespace tessera {

// The only table of named policies. A format alone has no preset.
struct KvPreset {
  std::string name;
  KvPolicy policy;

  friend bool operator==(const KvPreset&, const KvPreset&) = default;
};

// Returns: the preset that keeps all tokens in one format, named like the format.
inline KvPreset uniform_kv(KvFormat format) {
  return {name_of(format), {.high = format, .low = format}};
}
inline const KvPreset kKvPresetF32 = uniform_kv(kKvF32);  // of the oracle
inline const KvPreset kKvPresetF16 = uniform_kv(kKvF16);
inline const KvPreset kKvPresetK8V4 = uniform_kv(kKvK8V4);

std::span<const KvPreset> kv_presets();

// Returns: the choices that a user is shown: some formats, and every preset.
std::span<const KvPreset> kv_choices();

// Returns: the preset of that name, or the one that keeps all tokens in the format of that name.
std::optional<KvPreset> find_kv_preset(std::string_view name);

}  // namespace tessera
