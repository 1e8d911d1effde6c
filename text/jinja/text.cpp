#include "text/jinja/text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/utf8.h"

namespace tessera::jinja {
namespace {

// Returns: true if strip() removes `character`. Empty `characters` means white space.
bool strips(std::string_view character, std::string_view characters) {
  if (!characters.empty()) return characters.find(character) != std::string_view::npos;
  const Utf8Step step = next_utf8(character);
  if (step.kind != Utf8Step::Kind::valid) return false;
  // Python's str.isspace() also counts the four ASCII separators.
  return is_unicode_space(step.character) || (step.character >= 0x1C && step.character <= 0x1F);
}

size_t last_character(std::string_view text, size_t begin, size_t end) {
  size_t at = end - 1;
  while (at > begin && continues_utf8(text[at])) --at;
  return at;
}

}  // namespace

bool Text::any_from_message() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.from_message; });
}

bool Text::from_message_at(size_t at) const {
  return std::upper_bound(runs_.begin(), runs_.end(), at,
                          [](size_t position, const Run& run) { return position < run.end; })
      ->from_message;
}

void Text::append(std::string_view bytes, bool from_message) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().from_message == from_message) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), from_message});
  }
}

void Text::append(const Text& other) {
  size_t begin = 0;
  for (const Run& run : other.runs_) {
    append(std::string_view(other.bytes_).substr(begin, run.end - begin), run.from_message);
    begin = run.end;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text part;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  for (size_t at = begin; at < end; ++run) {
    const size_t stop = std::min(end, run->end);
    part.append(std::string_view(bytes_).substr(at, stop - at), run->from_message);
    at = stop;
  }
  return part;
}

Text Text::with_bytes(std::string bytes) const {
  Text other;
  other.bytes_ = std::move(bytes);
  other.runs_ = runs_;
  return other;
}

Text Text::strip(std::string_view characters, bool left, bool right) const {
  const std::string_view text = bytes_;
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    const size_t size = next_utf8(text.substr(begin)).size;
    if (!strips(text.substr(begin, size), characters)) break;
    begin += size;
  }
  while (right && begin < end) {
    const size_t at = last_character(text, begin, end);
    if (!strips(text.substr(at, end - at), characters)) break;
    end = at;
  }
  return slice(begin, end);
}

Text Text::replace(std::string_view from, const Text& to, size_t limit) const {
  Text result;
  size_t at = 0;
  for (size_t count = 0; count < limit; ++count) {
    const size_t found = find_bytes(bytes_, from, at);
    if (found == std::string::npos) break;
    result.append(slice(at, found));
    result.append(to);
    at = found + from.size();
  }
  result.append(slice(at, bytes_.size()));
  return result;
}

size_t find_bytes(std::string_view text, std::string_view wanted, size_t at) {
  if (at > text.size()) return std::string_view::npos;
  const void* const found =
      memmem(text.data() + at, text.size() - at, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_cost(std::string_view text, std::string_view wanted) {
  return text.size() * (1 + std::min<size_t>(wanted.size(), 256) / 16) + wanted.size();
}

}  // namespace tessera::jinja
