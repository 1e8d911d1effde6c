#include "server/grammar/lark.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "server/grammar/json_text_regex.h"

namespace tessera {
namespace {

constexpr int kMaxLarkDepth = 32;
constexpr std::size_t kMaxLarkBytes = 64 << 10;  // of terminals, as converted

// Terminals of Lark's grammar `common`, as regular expressions.
const std::map<std::string, const char*, std::less<>> kCommon = {
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"WS_INLINE", "[ \\t]+"},
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"NUMBER", "[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\\.[0-9]+(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"LETTER", "[a-zA-Z]"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""}};

bool is_name_part(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

class LarkReader {
 public:
  explicit LarkReader(std::string_view lark) : text_(lark) {}

  absl::StatusOr<std::string> read() {
    skip_to_item();
    while (status_.ok() && at_ < text_.size()) {
      if (take("%")) {
        read_directive();
      } else {
        read_rule();
      }
      skip_to_item();
    }
    if (!status_.ok()) {
      return status_;
    }
    used_.insert("start");
    for (const std::string& name : used_) {
      if (!rules_.contains(name)) {
        return absl::InvalidArgumentError(fmt::format("has no rule {}", name));
      }
    }
    std::string out;
    for (const auto& [name, expression] : rules_) {
      out += fmt::format("{} ::= {}\n", rule_of(name), expression);
    }
    return out;
  }

 private:
  static std::string rule_of(std::string_view name) { return fmt::format("lark_{}", name); }

  void fail(std::string_view what) {
    if (status_.ok()) {
      const std::string_view read = text_.substr(0, at_);
      const auto line = std::count(read.begin(), read.end(), '\n');
      status_ = absl::InvalidArgumentError(fmt::format("has {} in line {}", what, line + 1));
    }
    at_ = text_.size();
  }

  bool take(std::string_view part) {
    const bool found = text_.substr(at_).starts_with(part);
    at_ += found ? part.size() : 0;
    return found;
  }

  // Skips blanks and comments of the line.
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
    if (text_.substr(at_).starts_with("//")) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    }
  }

  void skip_to_item() {
    do {
      skip_blanks();
    } while (take("\n"));
  }

  // Inside of a rule, a line may go on in the next one if that begins with a bar, or in brackets.
  void skip_inside(int depth) {
    skip_blanks();
    const std::size_t line_end = at_;
    skip_to_item();
    if (depth == 0 && at_ > line_end && !(at_ < text_.size() && text_[at_] == '|')) {
      at_ = line_end;
    }
  }

  std::string read_name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name_part(text_[at_])) {
      ++at_;
    }
    if (begin == at_) {
      fail("no name where one is needed");
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  // %import common.NAME -> ALIAS, or %import common (NAME, NAME)
  void read_directive() {
    if (!take("import")) {
      return fail("a directive other than %import");
    }
    skip_blanks();
    if (!take("common")) {
      return fail("an import that is not of common");
    }
    if (take(".")) {
      const std::string name = read_name();
      skip_blanks();
      const bool renamed = take("->");
      skip_blanks();
      import(name, renamed ? read_name() : name);
      return;
    }
    skip_blanks();
    if (!take("(")) {
      return fail("an import without a name");
    }
    do {
      skip_inside(1);
      const std::string name = read_name();
      import(name, name);
      skip_inside(1);
    } while (status_.ok() && take(","));
    if (status_.ok() && !take(")")) {
      fail("an unmatched (");
    }
  }

  void import(const std::string& name, const std::string& alias) {
    const auto found = kCommon.find(name);
    if (found == kCommon.end()) {
      return fail("an import that is not known");
    }
    if (const auto expression = regex_expression(found->second); expression.ok()) {
      rules_[alias] = *expression;
    }
  }

  void read_rule() {
    if (!take("?")) {
      take("!");
    }
    const std::string name = read_name();
    if (take(".")) {
      read_name();  // a priority, which changes no text
    }
    skip_blanks();
    if (!take(":")) {
      return fail("no colon after a rule's name");
    }
    std::string expression = alternatives(0);
    if (status_.ok() && at_ < text_.size() && text_[at_] != '\n') {
      return fail("a part that is not known");
    }
    if (!rules_.emplace(name, std::move(expression)).second) {
      fail("a second rule of one name");
    }
  }

  std::string alternatives(int depth) {
    if (depth > kMaxLarkDepth) {
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
    for (skip_inside(depth); at_ < text_.size(); skip_inside(depth)) {
      if (take("->")) {
        skip_blanks();
        read_name();
        continue;
      }
      const char c = text_[at_];
      if (c == '|' || c == ')' || c == ']' || c == '\n') {
        break;
      }
      std::string part = item(depth);
      out += (out.empty() ? "" : " ") + part + repeat();
    }
    return out.empty() ? "\"\"" : out;
  }

  std::string item(int depth) {
    if (take("(")) {
      return bracketed(depth, ")");
    }
    if (take("[")) {
      return bracketed(depth, "]") + "?";
    }
    if (text_[at_] == '"') {
      return literal_or_range();
    }
    if (text_[at_] == '/') {
      return regex();
    }
    const std::string name = read_name();
    used_.insert(name);
    if (take("{")) {
      fail("a template");
    }
    return rule_of(name);
  }

  std::string bracketed(int depth, std::string_view end) {
    std::string out = alternatives(depth + 1);
    if (!take(end)) {
      fail("an unmatched bracket");
    }
    return out;
  }

  // Returns: the inside of a text between these delimiters, with its escapes; moves behind it.
  std::string_view delimited(char end) {
    const std::size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != end && text_[at_] != '\n') {
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    if (at_ >= text_.size() || text_[at_] != end) {
      fail("a text without an end");
      return {};
    }
    return text_.substr(begin, at_++ - begin);
  }

  std::string_view letters() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::islower(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  std::string regex() {
    const std::string_view inside = delimited('/');
    return converted(std::string(inside), letters());
  }

  std::string converted(const std::string& expression, std::string_view flags) {
    absl::StatusOr<std::string> made = regex_expression(expression, flags);
    if (!made.ok() && status_.ok()) {
      status_ = made.status();
    }
    bytes_ += made.value_or("").size();
    if (bytes_ > kMaxLarkBytes) {
      fail("too many terminals");
    }
    return made.value_or("");
  }

  // "text", "text"i or "a".."z". Escapes are those of regular expressions.
  std::string literal_or_range() {
    const std::string first = protect(delimited('"'));
    const std::string_view flags = letters();
    if (!take("..")) {
      return converted(first, flags);
    }
    if (at_ >= text_.size() || text_[at_] != '"') {
      fail("a range without an end");
      return {};
    }
    return converted("[" + first + "-" + protect(delimited('"')) + "]", {});
  }

  // Returns: a literal as a regular expression.
  static std::string protect(std::string_view literal) {
    std::string out;
    for (std::size_t i = 0; i < literal.size(); ++i) {
      const char c = literal[i];
      if (c == '\\' && i + 1 < literal.size()) {
        out += c;
        out += literal[++i];
      } else {
        out += std::ispunct(static_cast<unsigned char>(c)) != 0 ? "\\" : "";
        out += c;
      }
    }
    return out;
  }

  // ?, *, +, ~2 or ~2..4
  std::string repeat() {
    for (const char* const sign : {"?", "*", "+"}) {
      if (take(sign)) {
        return sign;
      }
    }
    const std::size_t before = at_;
    skip_blanks();
    if (!take("~")) {
      at_ = before;
      return {};
    }
    skip_blanks();
    const std::string least = read_name();
    const std::string most = take("..") ? read_name() : least;
    const bool numbers = std::ranges::all_of(
        least + most, [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
    if (!numbers || least.size() > 4 || most.size() > 4) {
      fail("a number of repeats that is not one");
    }
    return fmt::format("{{{},{}}}", least, most);
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::size_t bytes_ = 0;
  std::map<std::string, std::string> rules_;
  std::set<std::string> used_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::string> lark_rules(std::string_view lark) {
  return LarkReader(lark).read();
}

}  // namespace tessera
