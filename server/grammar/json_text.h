#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// Texts as they stand inside of a JSON string, in llama.cpp's notation of grammars.

// A set of characters.
class CharacterSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // both ends belong to it

  CharacterSet() = default;
  CharacterSet(std::initializer_list<Range> ranges) : ranges_(ranges) {}

  void add(uint32_t first, uint32_t last) { ranges_.emplace_back(first, last); }
  void add(const CharacterSet& other) {
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  }
  // Adds each letter of ASCII in its other case.
  void add_other_case();
  bool has(uint32_t character) const;
  CharacterSet complement() const;
  bool empty() const { return ranges_.empty(); }

  // Returns: an expression for one of them.
  // Requires: the set is not empty.
  std::string expression() const;

 private:
  std::vector<Range> ranges_;
};

// Return: an expression for a text, which may be empty; and one for a text outside of the string.
std::string text_expression(std::string_view text);
std::string terminal(std::string_view text);

// Reads one character of UTF-8. `at` moves behind it.
// Requires: `text` is valid UTF-8, and `at` a place in it.
uint32_t next_character(std::string_view text, std::size_t& at);

}  // namespace tessera
