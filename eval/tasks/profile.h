#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/tasks/split.h"
#include "eval/tasks/task.h"
#include "text/tokenizer.h"

namespace tessera {

struct TaskOptions {
  // Names of tasks and files of user tasks (*.jsonl), separated by commas. "all" and "quick" stand
  // for every built-in task of one question an item, in full or in a minute; "documents" for those
  // of many questions. Built-in tasks named besides "quick" are quick too.
  std::string tasks = "all";
  std::filesystem::path model{};  // has the chat template of `tools`
  // file for the task `text`, and for the prose of documents; empty: the text that ships
  std::filesystem::path text{};
  // tokens of the prompt and of the forced rest of each window of `text`; empty: the profile's
  std::vector<int32_t> windows{};
  std::vector<int32_t> lengths{};  // tokens of retrieval contexts; empty: the profile's
  int32_t samples = 0;             // for each retrieval cell, or contexts, or chats of a length of
                                   // `tools`; 0: the profile's
  int32_t questions = 0;           // of each context of documents; 0: the profile's
  int32_t limit = 0;               // windows of `text`, items of a user's task; 0: all
  int32_t kv_pairs = 0;            // pairs of a kv-retrieval item; 0: all
  uint64_t seed = 0;
  Split split = Split::all;
};

// Returns: names of all built-in tasks, separated by commas.
std::string task_names();

// Makes all tasks for a model of `context` tokens. Items that do not fit are left out and counted.
// Errors: those of the files. InvalidArgument for an unknown name (with the known ones), and for a
// task without any item that fits.
absl::StatusOr<std::vector<Task>> make_tasks(const TaskOptions& options, const Tokenizer& tokenizer,
                                             int32_t context);

}  // namespace tessera
