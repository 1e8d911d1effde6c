#include "server/grammar/pattern.h"

namespace tessera {
namespace {

// White space and line ends of ECMA-262 beyond ASCII, as members of a class.
constexpr std::string_view kWideSpaces =
    "\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff";

}  // namespace

absl::StatusOr<std::string> prepare_pattern(std::string_view pattern) {
  std::string out;
  bool in_class = false, negated = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view two = pattern.substr(i, 2);
    if (two == "\\S" && !in_class) {
      out.append("[^\\s").append(kWideSpaces).append("]");
      ++i;
    } else if (two == "\\S" && !negated) {
      return absl::InvalidArgumentError("has \\S inside of [], which grammars do not have");
    } else if (two == "\\s" && in_class && negated) {
      out.append(two).append(kWideSpaces);
      ++i;
    } else if (pattern[i] == '\\') {
      out.append(two);
      ++i;
    } else {
      if (pattern[i] == '[' && !in_class) {
        in_class = true;
        negated = two == "[^";
      } else if (pattern[i] == ']') {
        in_class = false;
      }
      out.push_back(pattern[i]);
    }
  }
  return out;
}

}  // namespace tessera
