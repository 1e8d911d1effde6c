#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/grammar/expanded_size.h"
#include "server/grammar/grammar_compiler.h"

namespace tessera {
namespace {

constexpr std::size_t kMaxRegexBytes = 4 << 10;
constexpr std::size_t kMaxGrammarBytes = 64 << 10;

// Returns: the sum of the regular expressions in a structural tag, and of the patterns in its
// schemas; nothing of a text that is no JSON, which the compiler refuses.
PatternSize tag_size(std::string_view text) {
  using Json = nlohmann::json;
  PatternSize sum;
  bool at_pattern = false;
  const auto read = [&](int /*depth*/, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::value && at_pattern && parsed.is_string()) {
      sum.add(pattern_size(parsed.get_ref<const std::string&>(), Notation::regex));
    }
    at_pattern = event == Json::parse_event_t::key && parsed == "pattern";
    return true;
  };
  const bool valid = !Json::parse(text, read, /*allow_exceptions=*/false).is_discarded();
  return valid ? sum : PatternSize();
}

PatternSize size_of(const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarSpec::Kind::regex:
      return pattern_size(spec.text, Notation::regex);
    case GrammarSpec::Kind::gbnf:
      return pattern_size(spec.text, Notation::gbnf);
    default:
      return tag_size(spec.text);
  }
}

}  // namespace

absl::Status check_notation(const GrammarSpec& spec) {
  const bool regex = spec.kind == GrammarSpec::Kind::regex;
  const std::size_t limit = regex ? kMaxRegexBytes : kMaxGrammarBytes;
  if (spec.text.empty() || spec.text.size() > limit) {
    return absl::InvalidArgumentError(
        fmt::format("must have 1 to {} bytes, not {}", limit, spec.text.size()));
  }
  return size_of(spec).check();
}

}  // namespace tessera
