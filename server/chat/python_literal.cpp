#include "server/chat/python_literal.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : rest_(text) {}

  std::optional<std::string> read() {
    const std::optional<std::string> value = read_value(0);
    skip();
    return rest_.empty() ? value : std::nullopt;
  }

 private:
  static constexpr int kMaxDepth = 64;

  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }
  bool take(char c) {
    skip();
    const bool there = rest_.starts_with(c);
    rest_.remove_prefix(there ? 1 : 0);
    return there;
  }

  std::optional<std::string> read_value(int depth) {
    skip();
    if (rest_.empty() || depth > kMaxDepth) {
      return std::nullopt;
    }
    switch (rest_.front()) {
      case '"':
      case '\'':
        return read_string();
      case '[':
        return read_items(']', depth);
      case '(':
        return read_items(')', depth);
      case '{':
        return read_items('}', depth);
      default:
        return read_word();
    }
  }

  // The items of a list, a tuple or a dict.
  std::optional<std::string> read_items(char close, int depth) {
    rest_.remove_prefix(1);
    std::string json = close == '}' ? "{" : "[";
    while (!take(close)) {
      std::optional<std::string> item = read_value(depth + 1);
      if (!item) {
        return std::nullopt;
      }
      if (close == '}') {
        const bool text = item->starts_with('"');
        const std::optional<std::string> value = take(':') ? read_value(depth + 1) : std::nullopt;
        if (!value) {
          return std::nullopt;
        }
        item = (text ? *item : "\"" + *item + "\"") + ": " + *value;
      }
      json += (json.size() > 1 ? ", " : "") + *item;
      if (!take(',')) {
        if (!take(close)) {
          return std::nullopt;
        }
        break;
      }
    }
    return json + (close == '}' ? "}" : "]");
  }

  std::optional<std::string> read_string() {
    const char quote = rest_.front();
    std::string bytes;
    for (std::size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == quote) {
        rest_.remove_prefix(i + 1);
        return Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace);
      }
      if (rest_[i] != '\\' || i + 1 == rest_.size()) {
        bytes += rest_[i];
        continue;
      }
      const char c = rest_[++i];
      constexpr std::string_view kEscapes = "ntr\\'\"";
      constexpr std::string_view kMeant = "\n\t\r\\'\"";
      const std::size_t known = kEscapes.find(c);
      bytes +=
          known == std::string_view::npos ? std::string{'\\', c} : std::string(1, kMeant[known]);
    }
    return std::nullopt;
  }

  std::optional<std::string> read_word() {
    const std::string word(rest_.substr(0, rest_.find_first_of(" \t\r\n,]})")));
    rest_.remove_prefix(word.size());
    if (word == "True" || word == "False" || word == "None") {
      return word == "True" ? "true" : word == "False" ? "false" : "null";
    }
    const Json number = Json::parse(word, nullptr, /*allow_exceptions=*/false);
    return number.is_number() ? std::optional(word) : std::nullopt;
  }

  std::string_view rest_;
};

}  // namespace

std::optional<std::string> python_to_json(std::string_view literal) {
  return LiteralReader(literal).read();
}

}  // namespace tessera
