#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The two long lists of a BPE tokenizer, as its file writes them. Texts are views of the file, so a
// list of 150,000 takes milliseconds.
struct BpeLists {
  struct Token {
    std::string_view text;
    int32_t id = 0;
  };
  std::vector<Token> tokens;
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // left and right, by rank
};

// Reads "vocab" and "merges" of the model in a tokenizer.json. Views are of `model`.
// Errors: InvalidArgument for other types, and for a merge that is no pair.
absl::StatusOr<BpeLists> read_bpe_lists(const nlohmann::json& model);

// Returns: the sides of a merge that is written as "a b".
// Errors: InvalidArgument without exactly one space.
absl::StatusOr<std::pair<std::string_view, std::string_view>> split_merge(std::string_view text,
                                                                          size_t rank);

}  // namespace tessera
