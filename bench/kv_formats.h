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
    {"f16", kKvF16},   {"f32", kKvF32},   {"k8v8", kKvK8V8}, {"k8v4", kKvK8V4}, {"k4v4", kKvK4V4},
    {"k4v2", kKvK4V2}, {"k4v1", kKvK4V1}, {"k4v8", kKvK4V8}, {"k2v4", kKvK2V4},
};

}  // namespace tessera::bench
