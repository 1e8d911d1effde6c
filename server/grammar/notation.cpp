#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "server/grammar/grammar_compiler.h"

namespace tessera {
namespace {

constexpr size_t kMaxRegexBytes = 4 << 10;
constexpr size_t kMaxGrammarBytes = 64 << 10;
constexpr int kMaxNesting = 32;
constexpr int64_t kMaxRepeats = 1'000;  // of one bound, and of bounds inside each other

// Follows brackets and repeats of a notation. Repeats multiply where they enclose each other.
class Nesting {
 public:
  absl::Status read(std::string_view text) {
    bool in_class = false, in_text = false;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c == '\\') {
        ++i;
      } else if (in_class || in_text) {
        in_class = in_class && c != ']';
        in_text = in_text && c != '"';
      } else if (c == '[') {
        in_class = true;
      } else if (c == '"' && texts_) {
        in_text = true;
      } else if (c == '(' && ++depth_ > kMaxNesting) {
        return absl::InvalidArgumentError(
            fmt::format("brackets are nested more than {} deep", kMaxNesting));
      } else if (c == ')') {
        depth_ = std::max(depth_ - 1, 0);
      } else if (c == '{') {
        bound(text.substr(i));
      }
    }
    return product_ <= kMaxRepeats * kMaxRepeats
               ? absl::OkStatus()
               : absl::InvalidArgumentError("its repeats multiply to too much");
  }
  explicit Nesting(bool texts) : texts_(texts) {}

 private:
  // A repeat such as {3}, {2,} or {2,5}.
  void bound(std::string_view text) {
    int64_t highest = 0, number = 0;
    for (size_t i = 1; i < text.size() && text[i] != '}'; ++i) {
      number = std::isdigit(static_cast<unsigned char>(text[i])) != 0
                   ? std::min<int64_t>(number * 10 + (text[i] - '0'), int64_t{1} << 20)
                   : 0;
      highest = std::max(highest, number);
    }
    product_ = std::min<int64_t>(product_ * std::max<int64_t>(highest, 1), int64_t{1} << 40);
  }

  const bool texts_;  // quoted texts are part of the notation
  int depth_ = 0;
  int64_t product_ = 1;
};

}  // namespace

absl::Status check_notation(const GrammarSpec& spec) {
  const bool regex = spec.kind == GrammarSpec::Kind::regex;
  const size_t limit = regex ? kMaxRegexBytes : kMaxGrammarBytes;
  if (spec.text.empty() || spec.text.size() > limit) {
    return absl::InvalidArgumentError(
        fmt::format("must have 1 to {} bytes, not {}", limit, spec.text.size()));
  }
  return Nesting(/*texts=*/!regex).read(spec.text);
}

}  // namespace tessera
