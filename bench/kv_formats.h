#pragma once

#include <string_view>

#include "kernels/kv/kv_format.h"

namespace tessera::bench {

struct KvFormatName {
  std::string_view name;
  KvFormat format;
};

// Formats that the bench knows by name, the baseline first.
inline constexpr KvFormatName kKvFormats[] = {
    {"f16", kKvF16},     {"f32", kKvF32},     {"k8v8", kKvK8V8},        {"k8v4", kKvK8V4},
    {"k8v1", {8, 1}},    {"k4v8", kKvK4V8},   {"k4v4", kKvK4V4},        {"k4v2", kKvK4V2},
    {"k4v1", kKvK4V1},   {"k2v8", {2, 8}},    {"k2v4", kKvK2V4},        {"k6v4r", kKvK6V4R},
    {"k4v4r", kKvK4V4R}, {"k4v2r", kKvK4V2R}, {"k4v3r", kKvK4V3R},      {"k3v3r", kKvK3V3R},
    {"k3v2r", kKvK3V2R}, {"k2v2", {2, 2}},    {"fp8", kKvFp8},          {"k2v1", {2, 1}},
    {"s50", kKvS50},     {"s70", kKvS70},     {"s50-k4v4", kKvS50K4V4}, {"s70-k4v4", kKvS70K4V4},
};

}  // namespace tessera::bench
