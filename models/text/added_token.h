#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "models/text/prefix_trie.h"
#include "models/text/tokenizer.h"

namespace tessera {

// A token that is found in the text before any merging. A special one is found only in segments
// with `parse_special`, any other one everywhere: it is ordinary text that happens to be one token.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // only between characters that are no letters, digits or "_"
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
};

// A part of a text: an added token, or what lies between two.
struct TextChunk {
  std::optional<int32_t> token;
  std::string_view text;  // of the whole chunk, white space that the token took along included
  bool begins_text = false;
};

// Cuts texts at added tokens: at each place the longest one that may stand there, from left to
// right. Immutable after build.
class AddedTokens {
 public:
  // Errors: an empty or over-long content; two tokens of one content or one id.
  absl::Status add(AddedToken token);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* find(std::string_view content) const;
  const AddedToken* find_id(int32_t id) const;

  // The segments' concatenation, in order and without gaps. `text` owns the bytes that the chunks
  // point into; what was not UTF-8 in a segment has become U+FFFD.
  std::vector<TextChunk> split(std::span<const TextSegment> segments, std::string& text) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, size_t special_end) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<int32_t, size_t> by_id_;
  PrefixTrie trie_;
};

}  // namespace tessera
