#pragma once

#include <string_view>

#include "kernels/kv_format.h"

namespace tessera::bench {

struct KvFormatName {
  std::string_view name;
  KvFormat format;
};

// Every format that has kernels, the baseline first.
inline constexpr KvFormatName kKvFormats[] = {
    {"f16", kKvF16},
    {"f32", kKvF32},
};

}  // namespace tessera::bench
