#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/run/journal.h"
#include "eval/run/subject.h"
#include "eval/tasks/task.h"

namespace tessera {

// Results of a task: results[subject][item][trial], with subjects in the order given to evaluate().
struct TaskResults {
  std::vector<std::vector<std::vector<TrialResult>>> results;
};

struct EvaluationOptions {
  // limit on the reference's logits that are kept at one time
  int64_t logits_bytes = int64_t{256} << 20;
  int32_t vocab = 0;
  // Called when trials are done, with their task and subject, and with the tokens since the last
  // call.
  std::function<void(std::string_view task, std::string_view subject, int64_t tokens)> on_progress =
      [](std::string_view, std::string_view, int64_t) {};
};

// Returns: tokens of the longest trial, with the two more that measuring a prompt's pages takes.
size_t longest_trial(std::span<const Task> tasks);

// Returns: tokens that evaluate() will run for this task, as counted by on_progress.
int64_t tokens_to_run(const Task& task, size_t subjects);

// Runs every item of the task on every subject. The first subject is the reference: the
// distributions of the others are compared with its distributions. Results in the journal are not
// computed again; new results are added to it. If the subjects do not give logits, nothing is
// compared. Compared trials then have only the log probabilities of their tokens.
// Errors: those of the subjects and the journal.
absl::StatusOr<TaskResults> evaluate(const Task& task,
                                     const std::vector<std::unique_ptr<Subject>>& subjects,
                                     const EvaluationOptions& options, Journal& journal);

}  // namespace tessera
