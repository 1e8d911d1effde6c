#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "engine/kv/kv_policy_fields.h"
#include "engine/kv/kv_presets.h"

namespace tessera {

// A quarter of the tokens, by the sum of all queries' attention (H2O).
inline constexpr const char* kAllQueries =
    "kv-compress:allocator=uniform:scorer=sum:score_window=0:score_pool=1";

// Half of the tokens of each section, by the most attention in its replay (KVzip).
inline constexpr const char* kReplaying = "replay-50:scorer=replay";

// Fewer tokens than leankv keeps.
inline constexpr const char* kStrictLeanKv =
    "leankv:score_window=8:score_pool=23:alpha_high=1000:alpha_low=6";

// Returns: a preset as `--kv` names it.
inline KvPreset kv_named(std::string_view name) {
  const absl::StatusOr<KvPreset> preset = parse_preset(name);
  EXPECT_TRUE(preset.ok()) << preset.status();
  return preset.ok() ? *preset : kKvPresetF16;
}

}  // namespace tessera
