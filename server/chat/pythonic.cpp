// Llama 3.2 and 4, pythonic: [f(a=1, b="x"), g()]. Each argument is shown when it is complete.
#include <algorithm>
#include <cctype>
#include <utility>

#include "server/chat/json_text.h"
#include "server/chat/llama_json.h"
#include "server/chat/python_literal.h"
#include "server/chat/tool_format.h"

namespace tessera {
namespace {

constexpr std::string_view kTag = "<|python_start|>";
constexpr std::string_view kSigns[] = {kTag, "[func_name1(params_name1"};
constexpr std::string_view kSpecials[] = {kTag};

// Follows quotes and brackets of a Python expression.
class ExpressionExtent {
 public:
  // Returns: false if the expression has ended before `c`.
  bool push(char c) {
    if (quote_ != 0) {
      quote_ = c == quote_ && !escaped_ ? '\0' : quote_;
      escaped_ = c == '\\' && !escaped_;
      return true;
    }
    if (depth_ == 0 && (c == ',' || c == ')')) {
      return false;
    }
    if (c == '"' || c == '\'') {
      quote_ = c;
    }
    depth_ += c == '[' || c == '{' || c == '(' ? 1 : 0;
    depth_ -= c == ']' || c == '}' || c == ')' ? 1 : 0;
    return true;
  }

 private:
  int depth_ = 0;
  char quote_ = '\0';
  bool escaped_ = false;
};

bool is_name(std::string_view text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0 &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' ||
                  c == '-';
         });
}

constexpr std::size_t kLongestName = 256;  // of a function or an argument

class PythonicParser final : public ToolParser {
  enum class Place : uint8_t { first, name, key, value, next, text };

  bool step(bool end, AnswerPart& out) override {
    switch (place_) {
      case Place::first:
        return read_first(end, out);
      case Place::name:
        return read_name(end, out);
      case Place::key:
        return read_key(end, out);
      case Place::value:
        return read_value(out);
      case Place::next:
        return read_next();
      case Place::text:
        break;
    }
    out.content += std::exchange(held_, {});
    return false;
  }

  void finish(AnswerPart& out) override { out.content += std::exchange(read_, {}); }

  bool to_text(AnswerPart& out) {
    out.content += std::exchange(read_, {});
    place_ = Place::text;
    return true;
  }

  // Drops so many held bytes. Until a call is named, they may turn out to be content.
  void read(std::size_t bytes) {
    if (begun() == 0) {
      read_ += held_.substr(0, bytes);
    }
    held_.erase(0, bytes);
  }

  bool read_first(bool end, AnswerPart& out) {
    const std::size_t blanks = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
    const std::string_view rest = std::string_view(held_).substr(blanks);
    if (!end && kTag.starts_with(rest)) {
      return false;
    }
    if (rest.starts_with(kTag)) {
      read(blanks + kTag.size());
      return true;
    }
    if (!rest.starts_with('[')) {
      return to_text(out);
    }
    read(blanks + 1);
    place_ = Place::name;
    return true;
  }

  bool read_name(bool end, AnswerPart& out) {
    const std::size_t blanks = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
    const std::size_t open = held_.find('(');
    const std::string name = held_.substr(blanks, open == std::string::npos ? open : open - blanks);
    const bool possible = name.empty() || (is_name(name) && name.size() <= kLongestName);
    if (open == std::string::npos && possible && !end) {
      return false;
    }
    if (open == std::string::npos || !is_name(name)) {
      return to_text(out);
    }
    read(open + 1);
    read_.clear();
    begin_call(name, out);
    any_argument_ = false;
    place_ = Place::key;
    return true;
  }

  bool read_key(bool end, AnswerPart& out) {
    skip_blanks();
    if (held_.starts_with(')')) {
      held_.erase(0, 1);
      add_arguments(any_argument_ ? "}" : "{}", out);
      end_call();
      place_ = Place::next;
      return true;
    }
    const std::size_t equal = held_.find('=');
    if (equal == std::string::npos) {
      if (held_.size() > kLongestName) {  // no argument any more
        place_ = Place::text;
        return true;
      }
      if (end) {
        held_.clear();
      }
      return false;
    }
    key_ = held_.substr(0, equal);
    key_.erase(0, key_.find_first_not_of(", \t\r\n"));
    key_.erase(key_.find_last_not_of(" \t\r\n") + 1);
    held_.erase(0, equal + 1);
    extent_ = {};
    place_ = Place::value;
    return true;
  }

  bool read_value(AnswerPart& out) {
    std::size_t size = 0;
    while (size < held_.size() && extent_.push(held_[size])) {
      ++size;
    }
    value_ += held_.substr(0, size);
    held_.erase(0, size);
    if (held_.empty()) {
      return false;
    }
    const std::string value = std::exchange(value_, {});
    add_arguments((any_argument_ ? ", " : "{") + json_string(key_) + ": " +
                      python_to_json(value).value_or(json_string(value)),
                  out);
    any_argument_ = true;
    place_ = Place::key;
    return true;
  }

  bool read_next() {
    skip_blanks();
    if (held_.empty()) {
      return false;
    }
    place_ = held_.front() == ',' ? Place::name : Place::text;
    held_.erase(0, held_.front() == ',' || held_.front() == ']' ? 1 : 0);
    skip_blanks();
    return true;
  }

  Place place_ = Place::first;
  std::string read_;  // consumed before the first call is named
  std::string key_;
  std::string value_;
  ExpressionExtent extent_;
  bool any_argument_ = false;
};

// The grammar of a forced choice writes JSON, which these models know too.
std::unique_ptr<ToolParser> make_parser(const ParserSetup& setup) {
  return setup.forced ? make_llama_json_parser(setup) : std::make_unique<PythonicParser>();
}

}  // namespace

const ToolFormat kPythonicFormat{.name = "pythonic",
                                 .signs = kSigns,
                                 .make_parser = make_parser,
                                 .layout = kLlamaJsonLayout,
                                 .trigger = "",
                                 .specials = kSpecials};

}  // namespace tessera
