#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "eval/run/journal.h"
#include "eval/run/model_host.h"
#include "eval/tasks/task.h"
#include "models/checkpoint/head_profile_file.h"
#include "text/tokenizer.h"

namespace tessera {

// Tokens of a row that is measured, the first and the newest ones.
inline constexpr int32_t kProfiledSinks = 4;
inline constexpr int32_t kProfiledTokens = 128;

// Returns: tokens that measure_head_losses() will run, as counted by its on_progress.
int64_t tokens_to_measure(std::span<const Task> tasks, const ModelConfig& config);

// Measures the model row by row: one row keeps kProfiledTokens tokens, all others everything. The
// loss is the mean divergence from f16 of the tokens that read the row after it has dropped some.
// DuoAttention (arXiv 2410.10819) calls the heads with a large one retrieval heads.
// Requires: the host was loaded for these tasks.
// Errors: those of ModelHost::subject and evaluate(); InvalidArgument if no token of the tasks
// reads a row that has dropped something.
absl::StatusOr<HeadLosses> measure_head_losses(
    const ModelHost& host, const Tokenizer& tokenizer, std::span<const Task> tasks,
    const std::function<void(std::string_view, std::string_view, int64_t)>& on_progress,
    Journal& journal);

}  // namespace tessera
