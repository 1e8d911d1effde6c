#include "server/chat/tool_parser.h"

#include <algorithm>
#include <utility>

#include "server/unique_id.h"

namespace tessera {
namespace {

// More blanks than these in a row are not held back: each piece looks at all of them.
constexpr size_t kMaxHeldBlanks = 1024;

}  // namespace

bool ToolParser::content_until(std::string_view marker, bool end, AnswerPart& out) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t found = held_.find(marker);
  size_t keep = 0;  // bytes at the end that may belong to a marker
  if (found == std::string::npos && !end) {
    keep = std::min(marker.size() - 1, held_.size());
    while (!marker.starts_with(std::string_view(held_).substr(held_.size() - keep))) {
      --keep;
    }
  }
  const size_t size = found == std::string::npos ? held_.size() - keep : found;
  const std::string_view text = std::string_view(held_).substr(0, size);
  const bool drops_blanks = found != std::string::npos || (end && begun_ > 0);
  size_t shown = end && !drops_blanks ? size : text.find_last_not_of(kBlanks) + 1;  // npos + 1: 0
  if (size - shown > kMaxHeldBlanks) {
    shown = size;
  }
  out.content += text.substr(0, shown);
  if (found != std::string::npos) {
    held_.erase(0, found + marker.size());
    return true;
  }
  held_.erase(0, end ? size : shown);
  return false;
}

ToolParser::Next ToolParser::next_is(std::string_view text, bool end) const {
  if (held_.starts_with(text)) {
    return Next::yes;
  }
  return !end && text.starts_with(held_) ? Next::unknown : Next::no;
}

void ToolParser::begin_call(std::string name, AnswerPart& out) {
  out.calls.push_back({.index = begun_++, .id = make_id(), .name = std::move(name)});
}

void ToolParser::add_arguments(std::string_view text, AnswerPart& out) {
  if (text.empty()) {
    return;
  }
  if (out.calls.empty() || out.calls.back().index != begun_ - 1) {
    out.calls.push_back({.index = begun_ - 1});
  }
  out.calls.back().arguments += text;
}

std::string ToolParser::make_id() const {
  return "call_" + unique_letters(24);
}

}  // namespace tessera
