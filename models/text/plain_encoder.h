#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

// One vocabulary's way from text without special tokens to ids. Immutable.
class PlainEncoder {
 public:
  virtual ~PlainEncoder() = default;

  // Appends the ids of `text` (UTF-8, not empty). `begins_text`: nothing precedes it, not even a
  // special token.
  virtual void encode(std::string_view text, bool begins_text, std::vector<int32_t>& ids) const = 0;

  // Whether what encode() gives at a text's beginning has a space in front that was not there.
  virtual bool adds_leading_space() const = 0;
};

}  // namespace tessera
