#pragma once

#include "kernels/cuda/pages/served_formats.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/kv/kv_page.h"

namespace tessera::cuda {

// Kinds of the served formats.
enum class FormatKind : uint8_t { floats, codes, sparse };

// Returns: the same layout, without code for refused formats in a kernel that takes it by this
// function. Requires: serves_format(layout.format), or there is no such layout.
TESSERA_DEVICE KvPageLayout as_served(KvPageLayout layout) {
  simt::assume(layout.format.key_bits != kCodebookBits);
  simt::assume(layout.format.value_bits != kCodebookBits);
  simt::assume(layout.format.key_bits != 6);
  simt::assume(layout.format.value_bits != 6);
  layout.format.rotated = false;
  layout.format.e4m3 = false;
  return layout;
}

// Returns: the same layout, with all that its kind says about the format as constants. A kernel
// that takes a layout by this function has no code for formats of other kinds either.
// Requires: serves_format(layout.format), of that kind.
template <FormatKind kKind>
TESSERA_DEVICE KvPageLayout as_kind(KvPageLayout layout) {
  layout = as_served(layout);
  KvFormat& format = layout.format;
  if constexpr (kKind == FormatKind::sparse) {
    simt::assume(format.is_sparse());
  } else {
    format.key_keep = KvFormat::kKeepAll;
    format.value_keep = KvFormat::kKeepAll;
  }
  if constexpr (kKind == FormatKind::floats) {
    simt::assume(format.key_bits == 16 || format.key_bits == 32);
    format.value_bits = format.key_bits;
  }
  if constexpr (kKind == FormatKind::codes) {
    // A choice of constants: the compiler then drops the layouts of other numbers of bits.
    format.key_bits = format.key_bits == 8 ? 8 : format.key_bits == 4 ? 4 : 2;
    format.value_bits = format.value_bits == 8   ? 8
                        : format.value_bits == 4 ? 4
                        : format.value_bits == 2 ? 2
                                                 : 1;
  }
  return layout;
}

// Calls visit(as_kind(layout)) for the layout's kind.
template <class Visit>
TESSERA_DEVICE void with_kind(const KvPageLayout& layout, Visit&& visit) {
  if (layout.format.is_sparse()) {
    visit(as_kind<FormatKind::sparse>(layout));
  } else if (layout.format.key_bits <= 8) {
    visit(as_kind<FormatKind::codes>(layout));
  } else {
    visit(as_kind<FormatKind::floats>(layout));
  }
}

}  // namespace tessera::cuda
