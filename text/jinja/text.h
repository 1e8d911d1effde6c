#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

// A string with an origin flag for each byte: template or message. Every operation of the
// interpreter keeps the flags, so a prompt's special tokens can only come from the template.
class Text {
 public:
  struct Run {
    size_t end;  // exclusive; a run begins at the end of the previous one
    bool from_message;
  };

  Text() = default;
  explicit Text(std::string bytes, bool from_message = false) : bytes_(std::move(bytes)) {
    if (!bytes_.empty()) runs_.push_back({bytes_.size(), from_message});
  }

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }  // adjacent runs differ in from_message
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool any_from_message() const;
  bool from_message_at(size_t at) const;  // Requires: at < size().

  // Returns: the work of a copy, in bytes.
  size_t cost() const { return bytes_.size() + 16 * runs_.size(); }

  void append(const Text& other);
  void append(std::string_view bytes, bool from_message = false);

  // Requires: begin <= end <= size().
  Text slice(size_t begin, size_t end) const;

  // Returns: other bytes with the origin flags of this text.
  // Requires: bytes.size() == size().
  Text with_bytes(std::string bytes) const;

  // Python's strip: removes the characters in `characters` (white space if empty) at the left and
  // right end, as selected.
  Text strip(std::string_view characters, bool left, bool right) const;

  // Replaces the first `limit` occurrences of `from` by `to`.
  // Requires: `from` is not empty.
  Text replace(std::string_view from, const Text& to, size_t limit) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

// Returns: where `wanted` begins in `text`, not before `at`; npos if it does not occur. Takes time
// linear in the text for every `wanted`, as std::string::find does not.
size_t find_bytes(std::string_view text, std::string_view wanted, size_t at = 0);

// Returns: the work of find_bytes() through the whole text, in bytes. Up to 256 bytes of `wanted`
// are compared at each position.
size_t find_cost(std::string_view text, std::string_view wanted);

}  // namespace tessera::jinja
