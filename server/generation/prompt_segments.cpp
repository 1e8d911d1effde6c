#include "server/generation/prompt_segments.h"

#include <string_view>

namespace tessera {

bool ends_in_thought(const std::vector<TextSegment>& segments) {
  if (segments.empty() || !segments.back().parse_special) {
    return false;
  }
  std::string_view text = segments.back().text;
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  return text.ends_with("<think>");
}

std::size_t bytes_of(const std::vector<TextSegment>& segments) {
  std::size_t bytes = 0;
  for (const TextSegment& segment : segments) {
    bytes += segment.text.size();
  }
  return bytes;
}

}  // namespace tessera
