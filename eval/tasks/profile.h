#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/tasks/task.h"
#include "models/text/tokenizer.h"

namespace tessera {

struct TaskOptions {
  // Names of tasks and files of user tasks (*.jsonl); "all" and "quick" stand for every built-in
  // task, in full or in a minute. Built-in tasks named besides "quick" are quick too.
  std::string tasks = "all";
  std::filesystem::path text{};    // for the task `text`; empty: the text that ships
  std::vector<int32_t> lengths{};  // of retrieval contexts, tokens; empty: the profile's
  int32_t samples = 0;             // of each retrieval cell; 0: the profile's
  int32_t limit = 0;               // items of a user's task; 0: all
  int32_t kv_pairs = 0;            // of a kv-retrieval item; 0: all
  uint64_t seed = 0;
};

// "text, generation, passkey, ...": what there is.
std::string task_names();

// Makes all tasks, for a model of `context` tokens. Items that do not fit are left out and counted.
// Errors: InvalidArgument for an unknown name (with those there are) and for a task of which
// nothing fits; those of the files.
absl::StatusOr<std::vector<Task>> make_tasks(const TaskOptions& options, const Tokenizer& tokenizer,
                                             int32_t context);

}  // namespace tessera
