#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "eval/tasks/material.h"
#include "eval/tasks/task.h"
#include "models/text/tokenizer.h"

namespace tessera {

// A kind of retrieval: a pair is told somewhere in a context and asked for at its end. The kinds
// are those that the shipped model's card scores (models/train/recall.py).
struct RetrievalKind {
  std::string_view name;
  std::string_view description;
  std::string_view told;    // "{k}" and "{v}" stand for the pair
  std::string_view ending;  // of the answer, after the value
  Material::Kind keys;
  Material::Kind values;
  bool prose;  // the rest of the context is prose; otherwise it is pairs that nobody asks for
  // The question is no part of the prompt: a policy that drops tokens at the prompt's end, by what
  // its last queries looked at, does not know yet what will be asked.
  bool asked_later = false;
};

std::span<const RetrievalKind> retrieval_kinds();

struct RetrievalGrid {
  std::vector<int32_t> lengths;  // tokens of context, question and answer together, at most
  std::vector<double> depths;    // of the context: 0 begins with the needle, 1 ends with it
  int32_t samples = 0;           // of each cell
};

// Questions for every cell of the grid.
Task make_retrieval(const RetrievalKind& kind, const RetrievalGrid& grid,
                    const Tokenizer& tokenizer, uint64_t seed);

}  // namespace tessera
