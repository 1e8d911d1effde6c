#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "text/prefix_trie.h"
#include "text/tokenizer.h"

namespace tessera {

// A token that is matched in the text before BPE merging. A special token is matched only in
// segments with `parse_special`. Other added tokens are matched everywhere, since they are ordinary
// text that is one token.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // only between characters that are not letters, digits or "_"
  bool lstrip = false;       // also consumes white space before it
  bool rstrip = false;       // also consumes white space after it
};

// A part of a text: an added token, or plain text between added tokens.
struct TextChunk {
  std::optional<int32_t> token;  // id of the added token; nullopt: plain text
  std::string_view text;         // whole chunk, with white space that the token consumed
  bool begins_text = false;
};

// Splits texts at added tokens, from left to right. At each position the longest permitted token
// matches. Immutable after the last add().
class AddedTokens {
 public:
  // Errors: InvalidArgument for content that is empty or above 512 bytes, or for a content or id
  // that was added before.
  absl::Status add(AddedToken token);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // Returns: null if there is no such token. Not owned; valid until the next add().
  const AddedToken* find(std::string_view content) const;
  const AddedToken* find_id(int32_t id) const;

  // Returns: chunks that cover the concatenated segments in order, without gaps. `text` receives
  // the concatenation and owns the bytes of the chunks. Invalid UTF-8 in a segment becomes U+FFFD.
  std::vector<TextChunk> split(std::span<const TextSegment> segments, std::string& text) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, size_t special_end) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<int32_t, size_t> by_id_;
  PrefixTrie trie_;
};

}  // namespace tessera
