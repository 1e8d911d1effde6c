#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// How a page encodes tokens: data, not a class. Keys and values may differ, because errors in keys
// pass through the exponential of the softmax and errors in values do not (LeanKV, section 3.1).
//
// Dense formats keep every channel. 32 and 16 bits are floats and go together. Fewer bits are
// codes: each token's key (and each token's value) of one KV head is stored as code * scale + zero,
// with scale and zero in f16 per token and head; code = round((x - zero) / scale) (LeanKV, section
// 2, equation 2).
//
// Sparse formats keep of each token's key (and value) of one KV head the channels of largest
// magnitude, an exact count of them, and read the others as 0: "MUSTAFAR: Promoting Unstructured
// Sparsity for KV Cache Pruning in LLM Inference" (2025), section 2. A bitmap says which. What is
// kept is f16, or a symmetric code * scale of 8 or 4 bits with one scale in f16 per token and head;
// keys and values are free of each other in bits and in what they keep.
struct KvFormat {
  static constexpr uint16_t kKeepAll = 1000;

  uint8_t key_bits = 16;         // 32, 16; 8, 4, 2
  uint8_t value_bits = 16;       // 32, 16; 8, 4, 2, 1
  uint16_t key_keep = kKeepAll;  // of 1000 channels; at least 1
  uint16_t value_keep = kKeepAll;

  constexpr bool is_sparse() const { return key_keep < kKeepAll || value_keep < kKeepAll; }
  constexpr bool is_floats() const { return !is_sparse() && key_bits >= 16; }
  constexpr bool is_codes() const { return !is_sparse() && key_bits <= 8; }

  // Channels that are kept of a token's key (value): the nearest count, and at least one.
  constexpr int32_t kept_keys(int32_t head_dim) const { return kept(key_keep, head_dim); }
  constexpr int32_t kept_values(int32_t head_dim) const { return kept(value_keep, head_dim); }

  friend constexpr bool operator==(KvFormat, KvFormat) = default;

 private:
  static constexpr int32_t kept(int32_t keep, int32_t head_dim) {
    const int32_t count = (head_dim * keep + kKeepAll / 2) / kKeepAll;
    return count < 1 ? 1 : count;
  }
};

inline constexpr KvFormat kKvF32{32, 32};  // the oracle's format
inline constexpr KvFormat kKvF16{16, 16};  // the baseline every smaller format is measured against
inline constexpr KvFormat kKvK8V8{8, 8};
inline constexpr KvFormat kKvK8V4{8, 4};
inline constexpr KvFormat kKvK4V4{4, 4};
inline constexpr KvFormat kKvK4V2{4, 2};
inline constexpr KvFormat kKvK4V1{4, 1};
// Mirrors of the above: only for LeanKV's comparison (section 7.2), which shows what keys are
// worth.
inline constexpr KvFormat kKvK4V8{4, 8};
inline constexpr KvFormat kKvK2V4{2, 4};
// MUSTAFAR's two degrees of sparsity, and what that paper does not have: with codes.
inline constexpr KvFormat kKvS50{16, 16, 500, 500};
inline constexpr KvFormat kKvS70{16, 16, 300, 300};
inline constexpr KvFormat kKvS50K8V8{8, 8, 500, 500};
inline constexpr KvFormat kKvS50K8V4{8, 4, 500, 500};
inline constexpr KvFormat kKvS50K4V4{4, 4, 500, 500};
inline constexpr KvFormat kKvS70K8V8{8, 8, 300, 300};
inline constexpr KvFormat kKvS70K8V4{8, 4, 300, 300};
inline constexpr KvFormat kKvS70K4V4{4, 4, 300, 300};

// Whether there are kernels for it.
constexpr bool is_supported(KvFormat format) {
  const int key = format.key_bits;
  const int value = format.value_bits;
  if (format.is_sparse()) {
    return (key == 16 || key == 8 || key == 4) && (value == 16 || value == 8 || value == 4) &&
           format.key_keep >= 1 && format.key_keep <= KvFormat::kKeepAll &&
           format.value_keep >= 1 && format.value_keep <= KvFormat::kKeepAll;
  }
  if (key >= 16 || value >= 16) {
    return key == value && (key == 16 || key == 32);
  }
  return (key == 8 || key == 4 || key == 2) &&
         (value == 8 || value == 4 || value == 2 || value == 1);
}

// Formats as text, one text for each: "f16", "k8v4"; for sparse ones what is not kept in per cent,
// of keys and, behind a v, of values where these differ, then the bits unless both are f16: "s70",
// "s50-k8v4", "s0v62.5", "s50v70-k16v8". "?" for a format without kernels.
std::string name_of(KvFormat format);

// The format of that name; nothing if there is none with kernels.
std::optional<KvFormat> kv_format_named(std::string_view name);

}  // namespace tessera
