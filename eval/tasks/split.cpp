#include "eval/tasks/split.h"

#include <cstddef>

namespace tessera {

std::string_view name_of(Split split) {
  constexpr std::string_view kNames[] = {"all", "tuning", "reporting"};
  return kNames[static_cast<size_t>(split)];
}

uint64_t seed_of(Split split, uint64_t seed) {
  return split == Split::tuning ? ~seed : seed;
}

std::string part_of(Split split, const std::string& text) {
  if (split == Split::all) {
    return text;
  }
  const size_t middle = text.size() / 2;
  size_t cut = text.find('\n', middle);
  if (cut == text.npos || cut + 1 == text.size()) {
    cut = text.find(' ', middle);
  }
  if (cut == text.npos) {
    cut = middle;
  }
  return split == Split::tuning ? text.substr(0, cut) : text.substr(cut);
}

}  // namespace tessera
