#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eval/measurement/seeded_random.h"
#include "eval/tasks/held_out_text.h"

namespace tessera {

// Returns: true for one in eight words, numbers and hex strings, by hash. These are never a key or
// a value in the shipped model's training (eval/train/material.py). Scores are taken on those
// alone.
bool is_held_out(std::string_view material);

// Words, numbers and prose for tasks. The same seed gives the same material on every machine.
class Material {
 public:
  // text: the source of prose(). Not owned; must outlive this.
  explicit Material(uint64_t seed, std::string_view text = held_out_text());

  enum class Kind : uint8_t { word, name, number, hex };

  // Returns: a held-out number of 4 to 6 digits, a held-out hex string of 4 or 8 digits, or any
  // everyday word or first name.
  std::string draw(Kind kind);

  // Returns: one or two sentences of the text, with a leading space. Any other white space between
  // words is one space.
  std::string prose();

  SeededRandom& random() { return random_; }

 private:
  std::string digits(std::string_view alphabet, size_t count);

  SeededRandom random_;
  std::vector<std::string_view> sentences_;
};

}  // namespace tessera
