#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>

struct evp_md_ctx_st;

namespace tessera {

// Name of a prefix block outside of the pool: a digest of all that its bits depend on. That is the
// fingerprint of checkpoint and settings, the format and the salt of its path, and all tokens up
// to the block's end. Equal names mean equal contents, in any process.
struct BlockKey {
  std::array<std::byte, 32> bytes = {};

  // The first bytes as a number, for hash tables.
  uint64_t word() const {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    return word;
  }
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
  friend bool operator<(const BlockKey& a, const BlockKey& b) { return a.bytes < b.bytes; }
};

// A block of a path as it was stored. The same tokens may be stored as computed, demoted, or
// computed behind demoted ones. level and grade: see PrefixTree.
struct BlockId {
  BlockKey path;
  uint8_t grade = 0;
  uint8_t level = 0;

  friend bool operator==(const BlockId&, const BlockId&) = default;
  friend bool operator<(const BlockId& a, const BlockId& b) {
    return std::tie(a.path, a.grade, a.level) < std::tie(b.path, b.grade, b.level);
  }
};

// Computes keys along a path. SHA-256: no client can make two prompts that have one key, so none
// can put its text in the place of another's. Allocates only when constructed. Not thread-safe.
class KeyChain {
 public:
  // fingerprint: see BlockKey. It may have any length.
  explicit KeyChain(std::string_view fingerprint);
  ~KeyChain();
  KeyChain(const KeyChain&) = delete;
  KeyChain& operator=(const KeyChain&) = delete;

  const BlockKey& fingerprint() const { return fingerprint_; }  // its digest
  // Returns: the key before the first block of a path. salt: opaque bytes.
  BlockKey root(std::string_view salt, uint8_t level);
  // Returns: the key of a block with these tokens behind `before`.
  BlockKey next(const BlockKey& before, std::span<const int32_t> tokens);

 private:
  BlockKey digest(std::span<const std::byte> first, std::span<const std::byte> second);

  evp_md_ctx_st* const context_;
  BlockKey fingerprint_;
};

}  // namespace tessera
