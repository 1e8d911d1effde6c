#pragma once

#include <cstdint>

// Limits well above any model of this family. They are low enough that ModelConfig's products fit
// into int32_t and byte counts fit into int64_t.
namespace tessera::config_limits {

inline constexpr int64_t kMaxVocab = 1 << 24;
inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr int64_t kMaxHeadDim = 256;     // limit of the backends' attention kernels
inline constexpr int64_t kHeadDimMultiple = 8;  // required by the same kernels
inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxContext = 1 << 26;
inline constexpr double kMinNormEpsilon = 1e-12;
inline constexpr double kMaxNormEpsilon = 0.1;
inline constexpr double kMaxRopeTheta = 1e12;
inline constexpr double kMaxRopeFactor = 1e6;

}  // namespace tessera::config_limits
