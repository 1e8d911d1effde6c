#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/report/report.h"
#include "eval/run/evaluation.h"
#include "eval/tasks/task.h"

namespace tessera {

// Turns results into scores with intervals. The same seed gives the same intervals.
TaskReport score_task(const Task& task, const TaskResults& results, uint64_t seed);

// What all tasks together say about each subject. `results` are those of the report's tasks. Fills
// everything of report.subjects but the names and descriptions.
struct HeadCounts {
  int32_t layers = 0;
  int32_t kv_heads = 0;
};
void judge_subjects(std::span<const TaskResults> results, const HeadCounts& heads, Report& report);

}  // namespace tessera
