#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace tessera {

// Place of the first of some markers in a text that comes in parts.
struct MarkerPlace {
  // Begin of the marker; without one, of the end of the text that may become a marker, or the size
  // of the text.
  std::size_t begin = 0;
  std::string_view marker{};  // empty: none
};

// Finds the marker that begins first; of two at one place, the one that is listed first.
// `end`: no text follows.
MarkerPlace find_marker(std::string_view text, std::span<const std::string_view> markers, bool end);

}  // namespace tessera
