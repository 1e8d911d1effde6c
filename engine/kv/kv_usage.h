#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv_format.h"

namespace tessera {

// What a sequence's keys and values are, over all layers and heads.
struct KvUsage {
  int64_t bytes = 0;      // as allocated: pages, window, tables, marks
  int64_t f16_bytes = 0;  // of the keys and values of all its tokens in f16, and nothing else
  // Tokens, as a mean over KV heads; those of the open group are among the high ones.
  double high = 0;
  double low = 0;
  double dropped = 0;
  // Of each (layer, KV head), tokens that are still there; empty where no policy drops any.
  std::vector<int32_t> kept{};
};

// Pages in use that hold tokens of one format.
struct KvFormatPages {
  KvFormat format;
  int64_t exclusive = 0;  // sequence
  int64_t shared = 0;     // or of the prefix cache
};

}  // namespace tessera
