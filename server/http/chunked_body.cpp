#include "server/http/chunked_body.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"

namespace tessera {
namespace {

// Returns: the size that a chunk's line begins with; nothing if the line is malformed.
// chunk = 1*HEXDIG [ chunk-ext ], where an extension begins with ";", perhaps after blanks.
std::optional<std::uint64_t> size_in(std::string_view line) {
  constexpr std::size_t kMaxDigits = 15;  // fits 64 bits
  std::size_t digits = 0;
  std::uint64_t size = 0;
  while (digits < line.size() && absl::ascii_isxdigit(static_cast<unsigned char>(line[digits]))) {
    const char c = absl::ascii_tolower(static_cast<unsigned char>(line[digits]));
    size = size * 16 + static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    if (++digits > kMaxDigits) {
      return std::nullopt;
    }
  }
  const std::string_view rest = line.substr(digits);
  const std::size_t extension = rest.find_first_not_of(" \t");
  const bool well_formed =
      digits > 0 &&
      (rest.empty() || (extension != std::string_view::npos && rest[extension] == ';'));
  return well_formed ? std::optional(size) : std::nullopt;
}

// Returns: true for a line without its end: no control character but a tab.
bool printable(std::string_view line) {
  return std::all_of(line.begin(), line.end(), [](char c) {
    return c == '\t' || !absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

}  // namespace

std::size_t ChunkedBody::feed(std::string_view bytes, std::size_t max_body, std::string& body) {
  std::size_t used = 0;
  while (used < bytes.size() && state_ == State::incomplete) {
    const std::string_view rest = bytes.substr(used);
    if (part_ == Part::data) {
      const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(left_, rest.size()));
      body.append(rest.substr(0, n));
      used += n;
      left_ -= n;
      part_ = left_ == 0 ? Part::data_end : Part::data;
      continue;
    }
    const std::size_t end = rest.find('\n');
    const std::size_t n = end == std::string_view::npos ? rest.size() : end + 1;
    used += n;
    if (line_.size() + n > line_bytes_ + 2) {  // 2: the line's end
      state_ = State::malformed;
      break;
    }
    line_.append(rest.substr(0, n));
    if (end != std::string_view::npos) {
      take_line(max_body, body.size());
      line_.clear();
    }
  }
  return used;
}

// Requires: line_ ends with "\n".
void ChunkedBody::take_line(std::size_t max_body, std::size_t body) {
  std::string_view line = line_;
  if (!line.ends_with("\r\n") || !printable(line.substr(0, line.size() - 2))) {
    state_ = State::malformed;
    return;
  }
  line.remove_suffix(2);
  if (part_ == Part::data_end) {
    part_ = Part::line;
    state_ = line.empty() ? State::incomplete : State::malformed;
    return;
  }
  if (part_ == Part::trailers) {
    trailer_bytes_ += line_.size();
    state_ = line.empty()                   ? State::complete
             : trailer_bytes_ > line_bytes_ ? State::malformed
                                            : State::incomplete;
    return;
  }
  const std::optional<std::uint64_t> size = size_in(line);
  if (!size) {
    state_ = State::malformed;
  } else if (*size > max_body - std::min(max_body, body)) {
    state_ = State::too_large;
  } else {
    left_ = *size;
    part_ = left_ == 0 ? Part::trailers : Part::data;
  }
}

}  // namespace tessera
