#pragma once

#include <cstdint>
#include <filesystem>

#include "absl/status/statusor.h"
#include "eval/tasks/split.h"
#include "eval/tasks/task.h"
#include "text/tokenizer.h"

namespace tessera {

struct JsonlOptions {
  int32_t limit = 0;         // maximum number of items; 0: all
  int32_t kv_pairs = 0;      // kept pairs of a kv-retrieval item; 0: all
  Split split = Split::all;  // the odd lines are for tuning, the even ones for reporting
};

// Reads a task from a file with one JSON object per line, in one of four forms. The first line
// determines the form.
//
//   {"prompt": "...", "answer": "..."}
//     exact: greedy decoding must write the answer.
//   {"prompt": "...", "choices": ["...", ...], "answer": 0}
//     The right choice must be the likeliest. `answer` is its index or its text.
//   {"ordered_kv_records": [["k", "v"], ...], "key": "...", "value": "..."}
//     kv-retrieval as in "Lost in the Middle": the generated text must contain the value.
//   {"context": "...", "questions": [{"question": "...", "answer": "..."}, ...], "asked": "later"}
//     exact, for each question of one context. "end": each question ends a prompt of its own.
//     "later": the policy acts on the context alone, and each question continues from there.
//     "turns": the same, but the questions follow each other with their answers.
//
// A continuation is appended directly to its prompt: a space between them must be part of one of
// them. "id" names an item; its default is the line number.
// Errors: NotFound; InvalidArgument "FILE:LINE: ..." for a malformed line or mixed forms.
absl::StatusOr<Task> read_jsonl_task(const std::filesystem::path& file, const JsonlOptions& options,
                                     const Tokenizer& tokenizer);

}  // namespace tessera
