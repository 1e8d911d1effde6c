#include "server/chat/marker_search.h"

#include <algorithm>

namespace tessera {

MarkerPlace find_marker(std::string_view text, std::span<const std::string_view> markers,
                        bool end) {
  MarkerPlace first{.begin = text.size()};
  for (const std::string_view marker : markers) {
    const std::size_t found = text.find(marker);
    if (found < first.begin) {
      first = {found, marker};
    }
  }
  // A marker that is cut off may begin before one that is whole.
  for (const std::string_view marker : markers) {
    std::size_t keep = end ? 0 : std::min(marker.size() - 1, text.size());
    while (!marker.starts_with(text.substr(text.size() - keep))) {
      --keep;
    }
    if (text.size() - keep < first.begin) {
      first = {text.size() - keep, {}};
    }
  }
  return first;
}

}  // namespace tessera
