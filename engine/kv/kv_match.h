#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "engine/kv/prefix_tree.h"
#include "kernels/kv/kv_format.h"

namespace tessera {

// A sequence's tokens for a lookup, and the formats that it accepts. All memory is the caller's.
struct KvPrompt {
  std::span<const int32_t> tokens;
  std::span<const uint64_t> hashes;  // PrefixTree::hash of each whole block, from the first
  std::string_view salt;             // blocks match under the same salt only
  KvFormat format;                   // in which the sequence stores
  KvFormat accept;                   // the coarsest that it reads
  // Pages that a row keeps of a section, as a mean over rows, if the policy replays; else 0. Such
  // blocks are compressed sections, and have paths of their own.
  int32_t section_pages = 0;
  // True: the sequence stores whole blocks and also reads compressed sections (section step).
  bool accepts_sections = false;
  // True: it may begin with short blocks behind the last whole one, as its own copies.
  bool copies_short_blocks = false;
  // Tokens behind these are read in the sequence's own form only. Samples of a request fork the
  // first ones, which takes whole rows behind them.
  int32_t max_coarse = std::numeric_limits<int32_t>::max();

  std::span<const int32_t> run(int32_t first, int32_t count) const {
    return tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  }
};

// The longest cached path of a sequence's tokens.
struct KvMatch {
  PrefixTree::Node node = PrefixTree::kNone;  // the last block's node
  int32_t blocks = 0;                         // whole ones
  int32_t low_blocks = 0;  // blocks in the format `low`, which is not the sequence's own format
  KvFormat low;
  int32_t section_blocks = 0;   // compressed sections among whole blocks of the sequence's format
  uint8_t grade = 0;            // the coarsest grade of all blocks
  int64_t pages = 0;            // of all blocks, without windows that are not read
  int32_t windowed_blocks = 0;  // last whole ones, whose windows are read
  int64_t windows_pages = 0;    // of these
  int32_t short_blocks = 0;     // behind the whole ones
  int64_t short_pages = 0;      // of these; the sequence takes as many for its copies
  uint64_t version = 0;         // PrefixTree::version() + 1; 0: no lookup was made
};

}  // namespace tessera
