#include "server/json/raw_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

constexpr std::string_view kJsonBlanks = " \t\r\n";

// Returns: the place after the string that begins at `at`.
std::size_t string_end(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    at += text[at] == '\\' ? 1 : 0;
  }
  return std::min(at + 1, text.size());
}

// Returns: the place of the comma or bracket after the value that begins at `at`.
std::size_t value_end(std::string_view text, std::size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = string_end(text, at);
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) {
      break;
    }
    depth += c == '{' || c == '[' ? 1 : 0;
    depth -= c == '}' || c == ']' ? 1 : 0;
    ++at;
  }
  return at;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kJsonBlanks), text.size());
  return text.substr(begin, text.find_last_not_of(kJsonBlanks) + 1 - begin);
}

// Calls `use` with the key and the value of each part of a container that begins with `open`.
template <class Use>
void for_each_part(std::string_view text, char open, Use use) {
  text = trimmed(text);
  if (!text.starts_with(open)) {
    return;
  }
  std::size_t at = text.find_first_not_of(kJsonBlanks, 1);
  while (at < text.size() && text[at] != '}' && text[at] != ']') {
    std::string_view key;
    if (open == '{') {
      key = text.substr(at, string_end(text, at) - at);
      at = std::min(text.find(':', at + key.size()), text.size() - 1) + 1;
    }
    const std::size_t end = value_end(text, at);
    use(key, trimmed(text.substr(at, end - at)));
    at = end < text.size() && text[end] == ',' ? text.find_first_not_of(kJsonBlanks, end + 1) : end;
  }
}

bool is_key(std::string_view quoted, std::string_view name) {
  if (quoted.find('\\') == std::string_view::npos) {
    return quoted.size() == name.size() + 2 && quoted.substr(1, name.size()) == name;
  }
  return nlohmann::json::parse(quoted, nullptr, /*allow_exceptions=*/false) == name;
}

}  // namespace

std::vector<std::string_view> raw_items(std::string_view list) {
  std::vector<std::string_view> items;
  for_each_part(list, '[',
                [&](std::string_view, std::string_view value) { items.push_back(value); });
  return items;
}

std::string_view raw_member(std::string_view object, std::string_view name) {
  std::string_view found;
  for_each_part(object, '{', [&](std::string_view key, std::string_view value) {
    found = is_key(key, name) ? value : found;
  });
  return found;
}

std::string spaced_json(std::string_view value) {
  std::string out;
  out.reserve(value.size() + value.size() / 8);
  std::size_t at = 0;
  while (at < value.size()) {
    const char c = value[at];
    if (c == '"') {
      const std::size_t end = string_end(value, at);
      out += value.substr(at, end - at);
      at = end;
      continue;
    }
    if (kJsonBlanks.find(c) == std::string_view::npos) {
      out += c;
      out += c == ',' || c == ':' ? " " : "";
    }
    ++at;
  }
  return out;
}

}  // namespace tessera
