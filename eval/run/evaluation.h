#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/run/journal.h"
#include "eval/run/subject.h"
#include "eval/tasks/task.h"

namespace tessera {

// What came out: results[subject][item][trial], subjects as they were given.
struct TaskResults {
  std::vector<std::vector<std::vector<TrialResult>>> results;
};

struct EvaluationOptions {
  int64_t logits_bytes = int64_t{256} << 20;  // of the reference's, kept at one time
  int32_t vocab = 0;
  // Called when trials are done: of the task and subject, and so many tokens further.
  std::function<void(std::string_view task, std::string_view subject, int64_t tokens)> on_progress =
      [](std::string_view, std::string_view, int64_t) {};
};

// Tokens that evaluate() will run for this task, as on_progress counts them.
int64_t tokens_to_run(const Task& task, size_t subjects);

// Runs every item of the task on every subject; the first one is the reference, with whose
// distributions the others are compared. What the journal has is not computed again, and what is
// computed goes into it. Compared trials are left out where the subjects do not give logits: then
// only their tokens' log probabilities are there.
// Errors: the subjects' and the journal's.
absl::StatusOr<TaskResults> evaluate(const Task& task,
                                     const std::vector<std::unique_ptr<Subject>>& subjects,
                                     const EvaluationOptions& options, Journal& journal);

}  // namespace tessera
