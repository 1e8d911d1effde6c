#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "load/run/options.h"

namespace tessera::load {

// Runs what the options ask for: one run, or a sweep, whose report is that of the highest rate that
// passed (of the lowest rate, if none did).
// Returns: the report. Its "failures" are empty if the run passed.
// Errors: the server cannot be used, or an option is wrong.
absl::StatusOr<nlohmann::ordered_json> run_load(const LoadOptions& options);

// Writes the files that the options name.
// Errors: Internal.
absl::Status write_reports(const LoadOptions& options, const nlohmann::ordered_json& report);

// Errors: NotFound or InvalidArgument names the file.
absl::StatusOr<nlohmann::json> read_report(const std::filesystem::path& path);

}  // namespace tessera::load
