#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "eval/command_line.h"
#include "eval/score/report.h"

namespace tessera {

// Loads the model (or queries the server), runs the tasks on every preset, and scores them.
// Errors: those of files, model, presets, tasks and server; InvalidArgument for a task that a
// server cannot run.
absl::StatusOr<Report> run_eval(const EvalOptions& options);

// Writes the requested report files.
// Errors: Internal, with the name of the file that cannot be written.
absl::Status write_reports(const EvalOptions& options, const Report& report);

}  // namespace tessera
