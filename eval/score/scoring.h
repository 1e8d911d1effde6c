#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/run/evaluation.h"
#include "eval/score/report.h"
#include "eval/tasks/task.h"

namespace tessera {

// Computes scores with intervals from results. The same seed gives the same intervals.
TaskReport score_task(const Task& task, const TaskResults& results, uint64_t seed);

// Layers and KV heads of the model.
struct HeadCounts {
  int32_t layers = 0;
  int32_t kv_heads = 0;
};
// Summarises all tasks for each subject. `tasks` and `results` are those of the report's tasks.
// Fills all of report.subjects except names and descriptions.
void judge_subjects(std::span<const Task> tasks, std::span<const TaskResults> results,
                    const HeadCounts& heads, Report& report);

}  // namespace tessera
