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
  std::span<const uint64_t> hashes;  // block_hash of each whole block, from the first
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

// The blocks of one kind on a path, and their pages.
struct KvRun {
  int32_t blocks = 0;
  int64_t pages = 0;
};

// The longest cached path of a sequence's tokens, in runs of blocks by kind.
struct KvMatch {
  PrefixTree::Node node = PrefixTree::kNone;  // the last block's node
  // Whole blocks. Pages are without those of windows.
  KvRun own;       // in the sequence's own format
  KvRun sections;  // compressed sections (section step), where that format is a whole one
  KvRun low;       // demoted, in the format `low_format`
  KvFormat low_format;
  KvRun short_ends;   // short blocks behind them; the sequence takes as many pages for its copies
  KvRun windows;      // the last whole blocks, whose windows are read, and the pages of these
  uint8_t grade = 0;  // the coarsest grade of all blocks
  uint64_t version = 0;  // PrefixTree::version() + 1; 0: no lookup was made

  int32_t blocks() const { return own.blocks + sections.blocks + low.blocks; }  // whole ones
  int64_t pages() const {  // of all blocks, without windows that are not read
    return own.pages + sections.pages + low.pages + short_ends.pages + windows.pages;
  }
};

}  // namespace tessera
