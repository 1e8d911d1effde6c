#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace tessera::jinja {
namespace {

using Kind = Token::Kind;

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// A longer name would make each use of it long work.
constexpr size_t kMaxNameBytes = 256;

// Longer symbols come first, because the first match is taken.
constexpr std::array<std::string_view, 27> kSymbols = {
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">",
    "=",  "(",  ")",  "[",  "]",  "{",  "}", ".", ",", ":", "|", ";", "!"};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> run() {
    while (at_ < source_.size()) {
      const size_t tag = find_tag();
      put_text(tag);
      if (tag == source_.size()) break;
      const char kind = source_[tag + 1];
      advance(tag + 2);
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) advance(at_ + 1);
      if (kind == '#') {
        TESSERA_RETURN_IF_ERROR(skip_comment());
      } else {
        TESSERA_RETURN_IF_ERROR(read_tag(kind));
      }
    }
    put(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  absl::Status error(const std::string& message) const {
    return absl::InvalidArgumentError("line " + std::to_string(line_) + ": " + message);
  }

  void put(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  size_t find_tag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{') continue;
      const char next = source_[i + 1];
      if (next == '{' || next == '%' || next == '#') return i;
    }
    return source_.size();
  }

  // Emits the text up to a tag, without the white space that the tags on both sides strip.
  void put_text(size_t tag) {
    size_t begin = at_;
    size_t end = tag;
    if (strip_next_) {
      while (begin < end && is_space(source_[begin])) ++begin;
    }
    if (tag < source_.size()) {
      const char mark = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      if (mark == '-') {
        while (end > begin && is_space(source_[end - 1])) --end;
      } else if (source_[tag + 1] != '{' && mark != '+') {
        end = without_indent(begin, end);
      }
    }
    if (begin < end) put(Kind::text, std::string(source_.substr(begin, end - begin)));
    strip_next_ = false;
    advance(tag);
  }

  // lstrip_blocks: removes blanks before a tag that is first on its line.
  // Returns: the end of the text.
  size_t without_indent(size_t begin, size_t end) const {
    size_t at = end;
    while (at > begin && (source_[at - 1] == ' ' || source_[at - 1] == '\t')) --at;
    const bool line_begins =
        at > begin ? source_[at - 1] == '\n' : begin == 0 || source_[begin - 1] == '\n';
    return line_begins ? at : end;
  }

  // Continues after a tag: "-" strips all white space, trim_blocks one line break.
  void finish_tag(size_t end, bool strip, bool trim) {
    advance(end);
    strip_next_ = strip;
    if (!strip && trim && at_ < source_.size() && source_[at_] == '\n') advance(at_ + 1);
  }

  absl::Status skip_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) return error("a comment without end");
    const char mark = end > at_ ? source_[end - 1] : '\0';
    finish_tag(end + 2, mark == '-', mark != '+');
    return absl::OkStatus();
  }

  absl::Status read_tag(char kind) {
    const bool statement = kind == '%';
    put(statement ? Kind::begin_statement : Kind::begin_output, "");
    const std::string close = statement ? "%}" : "}}";
    brackets_.clear();
    while (true) {
      while (at_ < source_.size() && is_space(source_[at_])) advance(at_ + 1);
      if (at_ == source_.size()) return error("a tag without \"" + close + "\"");
      const std::string_view rest = source_.substr(at_);
      const bool marked = rest[0] == '-' || (rest[0] == '+' && statement);
      if (brackets_.empty() && rest.substr(marked ? 1 : 0, 2) == close) {
        put(statement ? Kind::end_statement : Kind::end_output, "");
        finish_tag(at_ + (marked ? 3 : 2), rest[0] == '-', statement && !marked);
        return absl::OkStatus();
      }
      TESSERA_RETURN_IF_ERROR(read_token());
    }
  }

  absl::Status read_token() {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return read_string(c);
    if (is_digit(c)) return read_number();
    if (starts_name(c)) {
      size_t end = at_;
      while (end < source_.size() && (starts_name(source_[end]) || is_digit(source_[end]))) ++end;
      if (end - at_ > kMaxNameBytes) return error("a name of more than 256 bytes");
      put(Kind::name, std::string(source_.substr(at_, end - at_)));
      advance(end);
      return absl::OkStatus();
    }
    for (const std::string_view symbol : kSymbols) {
      if (!source_.substr(at_).starts_with(symbol)) continue;
      TESSERA_RETURN_IF_ERROR(track_bracket(symbol.front()));
      put(Kind::symbol, std::string(symbol));
      advance(at_ + symbol.size());
      return absl::OkStatus();
    }
    return error(absl::StrCat("unexpected character \"", std::string(1, c), "\""));
  }

  absl::Status track_bracket(char c) {
    if (c == '(') brackets_ += ')';
    if (c == '[') brackets_ += ']';
    if (c == '{') brackets_ += '}';
    if (c != ')' && c != ']' && c != '}') return absl::OkStatus();
    if (brackets_.empty() || brackets_.back() != c) {
      return error(std::string("unexpected \"") + c + "\"");
    }
    brackets_.pop_back();
    return absl::OkStatus();
  }

  absl::Status read_number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    Kind kind = Kind::integer;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      kind = Kind::number;
      ++end;
      digits();
    }
    std::string text(source_.substr(at_, end - at_));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    put(kind, std::move(text));
    advance(end);
    return absl::OkStatus();
  }

  absl::Status read_string(char quote) {
    std::string text;
    size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] == '\\' && at + 1 < source_.size()) {
        TESSERA_RETURN_IF_ERROR(read_escape(at, text));
      } else {
        text += source_[at++];
      }
    }
    if (at >= source_.size()) return error("a string without end");
    put(Kind::string, std::move(text));
    advance(at + 1);
    return absl::OkStatus();
  }

  // As in Python, an unknown escape is kept unchanged.
  absl::Status read_escape(size_t& at, std::string& text) {
    const char c = source_[at + 1];
    constexpr std::string_view kFrom = "ntrabfv\\'\"";
    constexpr std::string_view kTo = "\n\t\r\a\b\f\v\\'\"";
    const size_t simple = kFrom.find(c);
    if (simple != std::string_view::npos) {
      text += kTo[simple];
      at += 2;
      return absl::OkStatus();
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      text += '\\';
      at += 1;
      return absl::OkStatus();
    }
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char digit = at + 2 + i < source_.size() ? source_[at + 2 + i] : '\0';
      const bool lower = digit >= 'a' && digit <= 'f';
      const bool upper = digit >= 'A' && digit <= 'F';
      if (!is_digit(digit) && !lower && !upper) return error("a string escape without its digits");
      const int value = is_digit(digit) ? digit - '0' : (lower ? digit - 'a' : digit - 'A') + 10;
      code = code * 16 + static_cast<char32_t>(value);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return error("a string escape that is no character");
    }
    append_utf8(text, code);
    at += 2 + digits;
    return absl::OkStatus();
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool strip_next_ = false;
  std::string brackets_;  // open brackets
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> tokenize(std::string_view source) {
  // Jinja converts every kind of line break to "\n".
  std::string unix;
  for (size_t i = 0; i < source.size(); ++i) {
    const bool pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!pair) unix += source[i] == '\r' ? '\n' : source[i];
  }
  if (!unix.empty() && unix.back() == '\n') unix.pop_back();
  return Lexer(unix).run();
}

}  // namespace tessera::jinja
