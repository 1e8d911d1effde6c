#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/format_check.h"
#include "models/transformer.h"
#include "server/settings/settings.h"
#include "text/tokenizer.h"

namespace tessera {

// A default that was not measured on the served checkpoint is not used: at the first start with a
// checkpoint, the server measures the KV formats that it may use (engine/format_check.h). Results
// are kept in a file of the user's cache folder, so later starts read it.

// The model that formats are measured on.
struct CheckedModel {
  std::shared_ptr<Transformer> transformer;
  const Backend& backend;
  Stream stream;
};

// Measures the formats that `options` may use, and logs them. Sets options.format_checks, which
// decides about the default ladder. With settings.kv_auto, sets options.kv to the first of k8v4,
// k8v8 and f16 that holds. Does nothing without settings.kv_check.
// A format that cannot be measured in time is taken as one that does not hold, except k8v4 for
// settings.kv_auto. The log says so.
void choose_formats(const Settings& settings, const Tokenizer& tokenizer, CheckedModel model,
                    EngineOptions& options);

// Returns: the checks of earlier starts, without measuring; empty if there are none.
std::vector<FormatCheck> known_checks(const Settings& settings);

// Returns: "k8v4 0.0027, k4v2r 0.027".
std::string describe(std::span<const FormatCheck> checks);

// The text: prose, a table and code, written for this.
std::string_view kv_check_text();

// Keeps checks in one file for each checkpoint.
class CheckFile {
 public:
  // identity: everything that changes results. An empty folder keeps nothing.
  CheckFile(const std::filesystem::path& folder, std::string identity);

  // Returns: the checks; empty if the file is missing, damaged, or of another identity.
  std::vector<FormatCheck> read() const;
  // Errors: Internal, with the path.
  absl::Status write(std::span<const FormatCheck> checks) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;  // empty: nothing is kept
  std::string identity_;
};

}  // namespace tessera
