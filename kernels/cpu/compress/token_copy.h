#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_page.h"

namespace tessera {

// A token of one KV head, where it is stored: a page of some layout and a place in it.
struct TokenPlace {
  std::byte* page = nullptr;
  int32_t token = 0;  // in the page
};

// Copies a token's bytes as they are, both pages being of `layout`; other tokens are left alone.
void copy_token(const KvPageLayout& layout, TokenPlace from, TokenPlace to);

}  // namespace tessera
