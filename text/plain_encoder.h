#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

// Encodes text without special tokens to ids of one vocabulary. Immutable.
class PlainEncoder {
 public:
  virtual ~PlainEncoder() = default;

  // Appends the ids of `text` to `ids`. `begins_text`: no text and no special token precedes it.
  // Requires: `text` is UTF-8 and not empty.
  virtual void encode(std::string_view text, bool begins_text, std::vector<int32_t>& ids) const = 0;

  // Returns: true if encode() can add a leading space at the beginning of a text.
  virtual bool adds_leading_space() const = 0;
};

}  // namespace tessera
