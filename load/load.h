#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/run/options.h"

namespace tessera::load {

// Runs the load of the options: one run, or several rates, whose report is that of the last rate
// that passed (of the first one, if none did).
// Returns: the report. Its "failures" are empty if the run passed.
// Errors: the server cannot be used, or an option is wrong.
absl::StatusOr<nlohmann::ordered_json> run_load(const LoadOptions& options);

// Writes the files that the options name.
// Errors: Internal.
absl::Status write_reports(const LoadOptions& options, const nlohmann::ordered_json& report);

// Draws reports of --rates or --sweep, each given as "LABEL=FILE", on one page.
// Errors: NotFound, InvalidArgument or Internal names the file.
absl::Status draw_curves(const std::vector<std::string>& labelled,
                         const std::filesystem::path& html);

// Errors: NotFound or InvalidArgument names the file.
absl::StatusOr<nlohmann::json> read_report(const std::filesystem::path& path);

}  // namespace tessera::load
