#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Limits of the patterns of one grammar.
inline constexpr int kMaxPatternDepth = 32;          // brackets inside each other
inline constexpr int64_t kMaxExpandedSize = 10'000;  // of all its patterns

// The notation of a regular expression, or of GBNF: quoted texts, names of rules, blanks and
// comments mean something there.
enum class Notation : uint8_t { regex, gbnf };

struct PatternSize {
  // Characters, classes, texts and names, with each repeat written out: 12 for "(a|b){2,6}".
  int64_t expanded = 0;
  int depth = 0;  // of brackets

  // Adds another pattern of the same grammar.
  void add(const PatternSize& other);

  // Errors: InvalidArgument above a limit.
  absl::Status check() const;
};

// Measures a pattern without compiling it, in time that is linear in its length. It need not be
// valid: the compiler refuses it later.
PatternSize pattern_size(std::string_view pattern, Notation notation);

}  // namespace tessera
