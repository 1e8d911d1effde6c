#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Which data a run may see. Numbers that are searched on `tuning` and reported on `reporting` share
// neither a question nor a sentence of prose. `all` is for tests of one model, not for comparisons
// of searched presets.
enum class Split : uint8_t { all, tuning, reporting };
inline constexpr Split kSplits[] = {Split::all, Split::tuning, Split::reporting};
std::string_view name_of(Split split);

// Returns: the seed of the split's random numbers. No two seeds of different splits are equal below
// 2^63.
uint64_t seed_of(Split split, uint64_t seed);

// Returns: the part of a text for the split: its first half for tuning, its second half for
// reporting, cut behind a line or, without lines, behind a word.
std::string part_of(Split split, const std::string& text);

}  // namespace tessera
