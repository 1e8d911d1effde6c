#include "server/chat/tool_parser.h"

#include <algorithm>
#include <utility>

#include "server/base/unique_id.h"
#include "server/chat/marker_search.h"

namespace tessera {
namespace {

// More blanks than these in a row are not held back: each piece looks at all of them.
constexpr std::size_t kMaxHeldBlanks = 1024;

}  // namespace

std::string_view ToolParser::content_until(std::span<const std::string_view> markers, bool end,
                                           AnswerPart& out) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const MarkerPlace next = find_marker(held_, markers, end);
  const std::string_view text = std::string_view(held_).substr(0, next.begin);
  const bool drops_blanks = !next.marker.empty() || (end && begun_ > 0);
  std::size_t shown =
      end && !drops_blanks ? next.begin : text.find_last_not_of(kBlanks) + 1;  // npos + 1: 0
  if (next.begin - shown > kMaxHeldBlanks) {
    shown = next.begin;
  }
  out.content += text.substr(0, shown);
  if (!next.marker.empty()) {
    held_.erase(0, next.begin + next.marker.size());
  } else {
    held_.erase(0, end ? next.begin : shown);
  }
  return next.marker;
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
