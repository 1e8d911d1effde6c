#include "server/grammar/json_text_regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/grammar/json_text.h"

namespace tessera {
namespace {

constexpr int kMaxRegexDepth = 32;
constexpr std::size_t kMaxClassBytes = 64 << 10;  // of all classes, each of which may take hundreds

const CharacterSet kAscii = {{0, 0x7f}};
const CharacterSet kDigits = {{'0', '9'}};
const CharacterSet kWord = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}};
const CharacterSet kSpace = {{'\t', '\r'}, {' ', ' '}};
const CharacterSet kWideSpace = {{'\t', '\r'},     {0x1c, ' '},      {0x85, 0x85},
                                 {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                                 {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                 {0x3000, 0x3000}, {0xfeff, 0xfeff}};

// Characters of ASCII that are not in the set: an opposite that is right for any reading of \w.
CharacterSet opposite(const CharacterSet& set) {
  CharacterSet out = set;
  out.add(kAscii.complement());
  return out.complement();
}

class RegexReader {
 public:
  RegexReader(std::string_view regex, std::string_view flags)
      : text_(regex),
        no_case_(flags.find('i') != std::string_view::npos),
        dot_all_(flags.find('s') != std::string_view::npos) {}

  absl::StatusOr<std::string> read() {
    at_ += text_.starts_with('^') ? 1 : 0;
    std::string out = alternatives(0);
    if (error_.empty() && at_ < text_.size()) {
      fail("an unmatched )");
    }
    if (!error_.empty()) {
      return absl::InvalidArgumentError(fmt::format("has {}, which grammars do not have", error_));
    }
    return out;
  }

 private:
  void fail(std::string what) {
    error_ = error_.empty() ? std::move(what) : error_;
    at_ = text_.size();
  }
  bool done() const { return at_ >= text_.size(); }
  bool take(std::string_view part) {
    const bool found = text_.substr(at_).starts_with(part);
    at_ += found ? part.size() : 0;
    return found;
  }

  std::string alternatives(int depth) {
    if (depth > kMaxRegexDepth) {
      fail("too many levels");
    }
    std::string out = sequence(depth);
    while (take("|")) {
      out += " | " + sequence(depth);
    }
    return "(" + out + ")";
  }

  std::string sequence(int depth) {
    std::string out;
    while (!done() && text_[at_] != '|' && text_[at_] != ')') {
      if (text_.substr(at_) == "$") {
        ++at_;
        break;
      }
      std::string part = atom(depth);
      part += quantifier();
      out += (out.empty() ? "" : " ") + part;
    }
    return out.empty() ? "\"\"" : out;
  }

  std::string atom(int depth) {
    if (take("(")) {
      return group(depth);
    }
    if (take("[")) {
      return character_class();
    }
    if (take(".")) {
      return shown((dot_all_ ? CharacterSet() : CharacterSet{{'\n', '\n'}}).complement());
    }
    if (take("\\")) {
      return expression_of(escape());
    }
    if (text_[at_] == '^' || text_[at_] == '$' || text_[at_] == '*' || text_[at_] == '+' ||
        text_[at_] == '?') {
      fail(fmt::format("a '{}' at an odd place", text_[at_]));
      return {};
    }
    const std::size_t begin = at_;
    const uint32_t character = next_character(text_, at_);
    return no_case_ ? expression_of({{character, character}})
                    : text_expression(text_.substr(begin, at_ - begin));
  }

  std::string group(int depth) {
    if (take("?") && !take(":")) {
      const bool named =
          take("P<") || (take("<") && !done() && text_[at_] != '=' && text_[at_] != '!');
      const std::size_t end = text_.find('>', at_);
      if (!named || end == std::string_view::npos) {
        fail("a group with (?");
        return {};
      }
      at_ = end + 1;
    }
    std::string out = alternatives(depth + 1);
    if (!take(")")) {
      fail("an unmatched (");
    }
    return out;
  }

  std::string expression_of(CharacterSet set) {
    if (no_case_) {
      set.add_other_case();
    }
    if (!error_.empty() || set.empty()) {
      fail("a class without characters");
      return {};
    }
    return shown(set);
  }

  std::string shown(const CharacterSet& set) {
    std::string out = set.expression();
    class_bytes_ += out.size();
    if (class_bytes_ > kMaxClassBytes) {
      fail("too many classes");
    }
    return out;
  }

  std::string character_class() {
    negated_ = take("^");
    CharacterSet set;
    for (bool first = true; first || (!done() && text_[at_] != ']'); first = false) {
      if (done()) {
        fail("an unmatched [");
        return {};
      }
      const std::optional<uint32_t> from = member(set);
      if (from && at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        const std::optional<uint32_t> to = member(set);
        if (!to || *to < *from) {
          fail("a range without an end");
          return {};
        }
        set.add(*from, *to);
      } else if (from) {
        set.add(*from, *from);
      }
    }
    if (!take("]")) {
      fail("an unmatched [");
    }
    if (negated_ && opposites_) {
      fail("an opposite in a negated class");
    }
    opposites_ = false;
    if (no_case_) {
      set.add_other_case();
    }
    return expression_of(negated_ ? set.complement() : set);
  }

  // Returns: one character of a class; nothing if it was a set, which is added.
  std::optional<uint32_t> member(CharacterSet& set) {
    if (!take("\\")) {
      return next_character(text_, at_);
    }
    CharacterSet escaped = escape();
    if (one_ || !error_.empty()) {
      return one_;
    }
    set.add(escaped);
    if (negated_) {  // so that the opposite is right for any reading of \w
      set.add(kAscii.complement());
    }
    return std::nullopt;
  }

  // Reads the rest of an escape. one_: its only character, if it is not a set.
  CharacterSet escape() {
    if (done()) {
      fail("a \\ at its end");
      return {};
    }
    const char c = text_[at_++];
    one_.reset();
    switch (c) {
      case 'd':
        return kDigits;
      case 'w':
        return kWord;
      case 's':
        return kSpace;
      case 'D':
      case 'W':
        opposites_ = true;
        return opposite(c == 'D' ? kDigits : kWord);
      case 'S':
        opposites_ = true;
        return kWideSpace.complement();
      default:
        break;
    }
    constexpr std::string_view kNames = "nrtfv0";
    constexpr std::string_view kNamed("\n\r\t\f\v\0", 6);
    if (const std::size_t named = kNames.find(c); named != std::string_view::npos) {
      one_ = static_cast<unsigned char>(kNamed[named]);
    } else if (c == 'x' || c == 'u') {
      one_ = hexadecimal(c == 'x' ? 2 : 4);
    } else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      fail(fmt::format("\\{}", c));
    } else {
      --at_;
      one_ = next_character(text_, at_);
    }
    return one_ ? CharacterSet{{*one_, *one_}} : CharacterSet();
  }

  uint32_t hexadecimal(std::size_t digits) {
    uint32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      constexpr std::string_view kDigits16 = "0123456789abcdef";
      const char lower = done() ? '?' : static_cast<char>(text_[at_] | 0x20);
      const std::size_t digit = kDigits16.find(lower);
      if (digit == std::string_view::npos) {
        fail("an escape without digits");
        return 0;
      }
      value = value * 16 + static_cast<uint32_t>(digit);
      ++at_;
    }
    return value;
  }

  std::string quantifier() {
    if (done()) {
      return {};
    }
    std::string out;
    if (const char c = text_[at_]; c == '*' || c == '+' || c == '?') {
      out = c;
      ++at_;
    } else if (c == '{') {
      const std::size_t end = text_.find('}', at_);
      const std::string_view inside =
          text_.substr(at_, end == std::string_view::npos ? end : end + 1 - at_);
      if (end == std::string_view::npos || inside.size() < 3 || inside.size() > 12 ||
          inside[1] == ',' || inside.find_first_not_of("0123456789,", 1) != inside.size() - 1) {
        fail("a '{' without a number");
        return {};
      }
      out = inside;
      at_ = end + 1;
    } else {
      return out;
    }
    if (take("+")) {
      fail("a possessive quantifier");
    }
    take("?");  // as few as possible: the same texts
    return out;
  }

  const std::string_view text_;
  const bool no_case_;
  const bool dot_all_;
  std::size_t at_ = 0;
  std::size_t class_bytes_ = 0;
  std::optional<uint32_t> one_;
  bool negated_ = false;    // the class is
  bool opposites_ = false;  // the class has \D, \S or \W
  std::string error_;
};

}  // namespace

absl::StatusOr<std::string> regex_expression(std::string_view regex, std::string_view flags) {
  if (flags.find_first_not_of("is") != std::string_view::npos) {
    return absl::InvalidArgumentError(
        fmt::format("has the flags {}, of which grammars have i and s", flags));
  }
  return RegexReader(regex, flags).read();
}

}  // namespace tessera
