#include "server/grammar/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

constexpr uint32_t kLastCharacter = 0x10ffff;

// Returns: the text as JSON has it between quotes.
std::string in_json(std::string_view text) {
  const std::string quoted =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

bool is_escaped(uint32_t character) {
  return character < 0x20 || character == '"' || character == '\\';
}

// Adds a range to the inside of a class. All escapes have eight digits.
void append_range(std::string& out, CharacterSet::Range range) {
  out += fmt::format("\\U{:08x}", range.first);
  if (range.second > range.first) {
    out += fmt::format("-\\U{:08x}", range.second);
  }
}

}  // namespace

void CharacterSet::add_other_case() {
  constexpr uint32_t kBetween = 'a' - 'A';
  for (uint32_t letter = 'A'; letter <= 'Z'; ++letter) {
    if (has(letter) || has(letter + kBetween)) {
      add(letter, letter);
      add(letter + kBetween, letter + kBetween);
    }
  }
}

bool CharacterSet::has(uint32_t character) const {
  return std::ranges::any_of(ranges_, [&](const Range& range) {
    return range.first <= character && character <= range.second;
  });
}

CharacterSet CharacterSet::complement() const {
  std::vector<Range> sorted = ranges_;
  std::ranges::sort(sorted);
  CharacterSet rest;
  uint32_t next = 0;
  for (const auto& [first, last] : sorted) {
    if (first > next) {
      rest.add(next, first - 1);
    }
    next = std::max(next, last + 1);
  }
  if (next <= kLastCharacter) {
    rest.add(next, kLastCharacter);
  }
  return rest;
}

std::string CharacterSet::expression() const {
  std::vector<std::string> choices;
  for (uint32_t character = 0; character <= '\\'; ++character) {
    if (is_escaped(character) && has(character)) {
      choices.push_back(text_expression(std::string(1, static_cast<char>(character))));
    }
  }
  CharacterSet plain = complement();  // without those that are escaped, and no halves of pairs
  plain.add(0, 0x1f);
  plain.add('"', '"');
  plain.add('\\', '\\');
  plain.add(0xd800, 0xdfff);
  std::string members;
  for (const Range& range : plain.complement().ranges_) {
    append_range(members, range);
  }
  if (!members.empty()) {
    choices.push_back("[" + members + "]");
  }
  return choices.size() == 1 ? choices.front() : fmt::format("({})", fmt::join(choices, " | "));
}

std::string text_expression(std::string_view text) {
  return terminal(in_json(text));
}

std::string terminal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' || c == '\\' ? "\\" : "";
    out += c;
  }
  return out + "\"";
}

uint32_t next_character(std::string_view text, std::size_t& at) {
  const auto first = static_cast<unsigned char>(text[at++]);
  const int more = first < 0xc0 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  uint32_t character = more == 0 ? first : first & (0x3fU >> static_cast<unsigned>(more));
  for (int i = 0; i < more && at < text.size(); ++i) {
    character = character << 6U | (static_cast<unsigned char>(text[at++]) & 0x3fU);
  }
  return character;
}

}  // namespace tessera
