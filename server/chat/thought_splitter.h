#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Separates the reasoning of models that write <think>...</think> before their answer.
class ThoughtSplitter {
 public:
  // `open`: the prompt ends inside of a thought.
  explicit ThoughtSplitter(bool open) : place_(open ? Place::thought : Place::first) {}

  // Reads more text. Appends to `reasoning`.
  // Returns: text after the thought.
  std::string push(std::string_view text, bool end, std::string& reasoning);

  // True inside of a thought.
  bool thinking() const { return place_ == Place::thought; }

 private:
  enum class Place : uint8_t { first, thought, after, answer };

  Place place_;
  bool any_ = false;  // the reasoning is not empty
  std::string held_;
};

}  // namespace tessera
