#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Encoding of tokens in a page: data, not a class. Keys and values may differ, because errors in
// keys pass through the exponential of the softmax and errors in values do not.
//
// Dense formats keep every channel. 32 and 16 bits are floats, and keys and values then have the
// same bits. fp8 is a float of 8 bits (kernels/matrix/e4m3.h). Else, 8 bits and fewer are codes:
// each token's key (and each token's value) of one KV head is stored as code * scale + zero. Scale
// and zero are f16, per token and head; code = round((x - zero) / scale).
//
// Sparse formats keep the channels of largest magnitude of each token's key (and value) of one KV
// head, an exact count of them. The others read as 0. A bitmap marks the kept channels. They
// are f16, or a symmetric code * scale of 4 bits with one f16 scale per token and head. Bits
// and kept channels of keys and of values are independent.
//
// Rotated formats are codes of the rotated key and value (kernels/kv/rotation.h). A rotation
// spreads a large channel over all channels, so that it does not widen the steps of the others.
//
// Codes of 3 bits are places in a codebook (kernels/kv/codebook.h), times a scale, without a zero.
// Rotated channels are close to normally distributed, and only rotated formats have them. Keys of
// 6 bits exist in rotated formats alone too: without a rotation they lose to 8 bits by more.
struct KvFormat {
  static constexpr uint16_t kKeepAll = 1000;

  uint8_t key_bits = 16;         // 32, 16; 8, 6, 4, 3, 2
  uint8_t value_bits = 16;       // 32, 16; 8, 4, 3, 2, 1
  uint16_t key_keep = kKeepAll;  // kept channels of 1000; at least 1
  uint16_t value_keep = kKeepAll;
  bool rotated = false;  // only codes
  bool e4m3 = false;     // floats of 8 bits (kernels/matrix/e4m3.h), for keys and values

  constexpr bool is_sparse() const { return key_keep < kKeepAll || value_keep < kKeepAll; }
  constexpr bool is_floats() const { return !is_sparse() && (key_bits >= 16 || e4m3); }
  constexpr bool is_codes() const { return !is_sparse() && key_bits <= 8 && !e4m3; }

  // Returns: number of kept channels of a token's key (value): the nearest count, and at least one.
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
inline constexpr KvFormat kKvF16{16, 16};  // the baseline that smaller formats are measured against
// Without scales, as vLLM has it by that name: magnitudes above 448 become 448.
inline constexpr KvFormat kKvFp8{8, 8, KvFormat::kKeepAll, KvFormat::kKeepAll, false, true};
inline constexpr KvFormat kKvK8V8{8, 8};
inline constexpr KvFormat kKvK8V4{8, 4};
inline constexpr KvFormat kKvK4V4{4, 4};
inline constexpr KvFormat kKvK4V2{4, 2};
inline constexpr KvFormat kKvK4V1{4, 1};
inline constexpr KvFormat kKvK6V4R{6, 4, KvFormat::kKeepAll, KvFormat::kKeepAll, true};
inline constexpr KvFormat kKvK4V4R{4, 4, KvFormat::kKeepAll, KvFormat::kKeepAll, true};
inline constexpr KvFormat kKvK4V2R{4, 2, KvFormat::kKeepAll, KvFormat::kKeepAll, true};
inline constexpr KvFormat kKvK4V3R{4, 3, KvFormat::kKeepAll, KvFormat::kKeepAll, true};
inline constexpr KvFormat kKvK3V3R{3, 3, KvFormat::kKeepAll, KvFormat::kKeepAll, true};
inline constexpr KvFormat kKvK3V2R{3, 2, KvFormat::kKeepAll, KvFormat::kKeepAll, true};
// Mirrors of the above, for comparisons of keys and values.
inline constexpr KvFormat kKvK4V8{4, 8};
inline constexpr KvFormat kKvK2V4{2, 4};
// Two degrees of sparsity, and the same with codes.
inline constexpr KvFormat kKvS50{16, 16, 500, 500};
inline constexpr KvFormat kKvS70{16, 16, 300, 300};
inline constexpr KvFormat kKvS50K4V4{4, 4, 500, 500};
inline constexpr KvFormat kKvS70K4V4{4, 4, 300, 300};

// Returns: true if there are kernels for the format.
constexpr bool is_supported(KvFormat format) {
  const int key = format.key_bits;
  const int value = format.value_bits;
  if (format.rotated && !format.is_codes()) {
    return false;
  }
  if (format.e4m3) {
    return key == 8 && value == 8 && !format.is_sparse();
  }
  if (format.is_sparse()) {
    return (key == 16 || key == 4) && (value == 16 || value == 4) && format.key_keep >= 1 &&
           format.key_keep <= KvFormat::kKeepAll && format.value_keep >= 1 &&
           format.value_keep <= KvFormat::kKeepAll;
  }
  if (key >= 16 || value >= 16) {
    return key == value && (key == 16 || key == 32);
  }
  if ((key == 6 || key == 3 || value == 3) && !format.rotated) {
    return false;
  }
  return !(key == 8 && value == 2 && !format.rotated) &&  // k6v4r is nearer in the same bytes
         (key == 8 || key == 6 || key == 4 || key == 3 || key == 2) &&
         (value == 8 || value == 4 || value == 3 || value == 2 || value == 1);
}

// Returns: the unique name of a format: "f16", "fp8", "k8v4"; "?" for a format without kernels.
// Sparse names have the pruned per cent of keys and, behind a v, of values if these differ. The
// bits follow unless both are f16: "s70", "s50-k4v4", "s0v62.5", "s50v70-k16v4". The name of a
// rotated format ends with an r: "k4v2r".
std::string name_of(KvFormat format);

// Returns: the format of that name; nothing if there is none with kernels.
std::optional<KvFormat> kv_format_named(std::string_view name);

}  // namespace tessera
