#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tasks/material.h"
#include "eval/tasks/task.h"
#include "text/tokenizer.h"

namespace tessera {

// One context with many questions, in the shapes of two benchmarks: needles with keys (RULER, 2024,
// section 3.1: NIAH multi-key) and shared contexts (SCBench, 2024, section 3: Retr.KV, Retr.Prefix-
// Suffix; its modes "multi-request" and "multi-turn"). A context is one item, so that intervals are
// drawn by context.
struct DocumentKind {
  std::string_view name;
  std::string_view description;
  // A fact and the beginning of it that asks; "{k}" and "{v}" stand for thing and value. Empty: the
  // question is the beginning of a sentence of the prose, and its continuation the answer.
  std::string_view told;
  std::span<const std::string_view> values;  // empty: held-out numbers
  bool prose;                                // false: the context has nothing but facts
};

std::span<const DocumentKind> document_kinds();

// When a question becomes known.
enum class Asked : uint8_t {
  end,    // at the prompt's end: the policy acts after it
  later,  // after the policy has acted on the context; each question is a fork
  turns,  // the same, one after the other in one sequence
};
inline constexpr Asked kAsked[] = {Asked::end, Asked::later, Asked::turns};
std::string_view name_of(Asked asked);

// A question and its answer, which follows it directly.
struct AskedText {
  std::string question;
  std::string answer;
};

// Makes the trials of one context.
// Requires: a context, questions and answers that are not empty.
std::vector<Trial> make_asking_trials(std::string_view context,
                                      std::span<const AskedText> questions, Asked asked,
                                      const Tokenizer& tokenizer);

struct DocumentGrid {
  std::vector<int32_t> lengths;  // maximum tokens of context, question and answer together
  int32_t contexts = 0;          // for each length
  int32_t questions = 0;         // for each context
};

// material: keys, values and prose. The same seed of it gives the same contexts for every `asked`,
// so that these can be compared.
Task make_documents(const DocumentKind& kind, Asked asked, const DocumentGrid& grid,
                    const Tokenizer& tokenizer, Material material);

}  // namespace tessera
