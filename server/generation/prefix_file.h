#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tier/block_key.h"

namespace tessera {

// A part of a file of a prefix, which moves it from one server to another. The parts of a prefix
// follow each other in the file. Numbers are little-endian.
//
//   [ "TSRAPFX1" | bytes of the part (8) | fingerprint (32) | first block, blocks, tokens of a
//     block, root level, bytes of the salt (4 each) | salt | tokens (4 each) | records | SHA-256 of
//     all before (32) ]
//
// The tokens are those from the beginning of the prefix to the last block of the part. For the
// other fields see engine/kv/prefix_transfer.h.
struct PrefixFilePart {
  BlockKey fingerprint;
  int32_t first_block = 0;
  int32_t blocks = 0;
  int32_t block_tokens = 0;
  uint8_t root_level = 0;
  std::string_view salt;
  std::vector<int32_t> tokens;
  std::span<const std::byte> records;
};

// Appends a part to `out`.
void print_prefix_part(const PrefixFilePart& part, std::string& out);

// Takes the first part from the front of `file`. Its salt and records point into the file.
// Errors: InvalidArgument (not such a file, cut off, or damaged).
absl::StatusOr<PrefixFilePart> take_prefix_part(std::string_view& file);

}  // namespace tessera
