#pragma once

#include "kernels/kv/kv_page.h"

namespace tessera::cuda {

// Formats of the rows that a kernel serves. AnyRows serves all, and finds a tile's format when it
// comes to it. Every other struct is for decode over an arena of one format, with its head
// dimension a constant and without a sliding window: offsets, loops and masks are then constants of
// the kernel. kBlocks: blocks a multiprocessor with one product, by 96 or 128 registers a lane.
struct AnyRows {
  static constexpr bool kOneFormat = false;
  static constexpr int kBlocks = 4;
};
struct F16Rows {
  static constexpr bool kOneFormat = true;
  static constexpr int kBlocks = 5;
  static constexpr KvFormat kFormat = kKvF16;
};
struct K8V4Rows {
  static constexpr bool kOneFormat = true;
  static constexpr int kBlocks = 5;
  static constexpr KvFormat kFormat = kKvK8V4;
};
struct K4V2Rows {
  static constexpr bool kOneFormat = true;
  static constexpr int kBlocks = 5;
  static constexpr KvFormat kFormat = kKvK4V2;
};
struct S70Rows {
  static constexpr bool kOneFormat = true;
  static constexpr int kBlocks = 5;
  static constexpr KvFormat kFormat = kKvS70;
};

// Returns: whether a kernel's rows may have codes, or another format with a path of its own.
template <class Rows>
constexpr bool has_codes() {
  if constexpr (Rows::kOneFormat) {
    return Rows::kFormat.is_codes();
  }
  return true;
}

// Returns: whether a kernel is for pages of f16.
template <class Rows>
constexpr bool has_halves() {
  if constexpr (Rows::kOneFormat) {
    return Rows::kFormat == kKvF16;
  }
  return false;
}

// Returns: whether a kernel copies tiles of sparse rows (CopiedParts).
template <class Rows>
constexpr bool copies_parts() {
  if constexpr (Rows::kOneFormat) {
    return Rows::kFormat.is_sparse();
  }
  return false;
}

}  // namespace tessera::cuda
