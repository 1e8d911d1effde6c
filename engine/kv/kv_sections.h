#pragma once

#include <cstdint>
#include <limits>

namespace tessera {

// The sections of one sequence whose policy replays (KvPolicy::section), for planning. Section
// borders are fixed by position. When the last token of a section is stored, the sequence next
// stores the tokens of its replay behind it. These are scored, and forgotten when the section is
// compressed. The sequence then goes on behind the section.
//
// So a sequence reaches every position in the same state, whatever steps it took, and whether its
// first sections came from the prefix cache or not.
struct KvSections {
  int32_t tokens = 0;      // of a section, and of its replay; 0: the policy does not replay
  int32_t end = 0;         // sections that end behind this position stay whole
  int64_t pages = 0;       // of a compressed section, over all rows
  int32_t compressed = 0;  // first tokens of the sequence, those of compressed sections
  int32_t replayed = 0;    // stored tokens of the current replay

  constexpr int32_t next_end() const { return compressed + tokens; }
  constexpr bool compresses_next() const { return tokens > 0 && next_end() <= end; }
  // Returns: true if the next tokens of a sequence with `stored` tokens are those of a replay.
  constexpr bool replay_due(int32_t stored) const {
    return compresses_next() && stored == next_end();
  }
  // Returns: tokens that a step may compute at most: a run ends where a section or a replay ends.
  constexpr int32_t run_limit(int32_t stored) const {
    if (!compresses_next()) {
      return std::numeric_limits<int32_t>::max();
    }
    return replay_due(stored) ? tokens - replayed : next_end() - stored;
  }
  // Returns: tokens of the high tier's rows that are not in compressed sections.
  constexpr int32_t behind(int32_t stored) const { return stored + replayed - compressed; }
};

}  // namespace tessera
