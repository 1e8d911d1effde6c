#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "eval/tasks/material.h"
#include "eval/tasks/task.h"
#include "text/tokenizer.h"

namespace tessera {

// A kind of retrieval: a context contains a pair of key and value, and its end asks for the value.
// The shipped model's card scores the same kinds (eval/train/recall.py).
struct RetrievalKind {
  std::string_view name;
  std::string_view description;
  std::string_view told;    // "{k}" and "{v}" stand for the pair
  std::string_view ending;  // end of the answer, after the value
  Material::Kind keys;
  Material::Kind values;
  bool prose;  // the rest of the context is prose; false: pairs that are not requested
  // The question is not part of the prompt. A policy that drops tokens at the prompt's end by the
  // attention of its last queries then acts before the question.
  bool asked_later = false;
};

std::span<const RetrievalKind> retrieval_kinds();

struct RetrievalGrid {
  std::vector<int32_t> lengths;  // maximum tokens of context, question and answer together
  std::vector<double> depths;    // needle in the context: 0 at its beginning, 1 at its end
  int32_t samples = 0;           // for each cell
};

// Makes questions for every cell of the grid.
Task make_retrieval(const RetrievalKind& kind, const RetrievalGrid& grid,
                    const Tokenizer& tokenizer, uint64_t seed);

}  // namespace tessera
