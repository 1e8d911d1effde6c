#pragma once

#include <cstdint>
#include <filesystem>

#include "absl/status/statusor.h"
#include "eval/tasks/task.h"
#include "models/text/tokenizer.h"

namespace tessera {

struct JsonlOptions {
  int32_t limit = 0;     // at most so many items; 0: all
  int32_t kv_pairs = 0;  // of a kv-retrieval item; the others are left out. 0: all
};

// A task from a file with one JSON object a line, in one of three forms, told by the first line:
//
//   {"prompt": "...", "answer": "..."}                    exact: is the answer what greedy decoding
//   writes?
//   {"prompt": "...", "choices": ["...", ...], "answer": 0}   which choice is the likeliest?
//   `answer`
//                                                          is its index or its text
//   {"ordered_kv_records": [["k", "v"], ...], "key": "...", "value": "..."}   kv-retrieval as in
//                                                          "Lost in the Middle": does the model say
//                                                          the value?
//
// A continuation is put right behind its prompt: a space between them belongs to one of them. "id"
// names an item; without it the line number does.
// Errors: NotFound; InvalidArgument "FILE:LINE: ..." for what is malformed or mixes forms.
absl::StatusOr<Task> read_jsonl_task(const std::filesystem::path& file, const JsonlOptions& options,
                                     const Tokenizer& tokenizer);

}  // namespace tessera
