#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/tasks/task.h"

namespace tessera {

// Results computed so far, in a file of JSON lines, so that an interrupted run can resume. An entry
// is valid only for identical tokens. Other tasks, samples or seeds find no entry and are computed.
class Journal {
 public:
  // Without a file: keeps nothing. With one: reads its entries, and appends later ones to it.
  // `model` identifies the evaluated model; a journal of another one is rejected. An incomplete
  // last line, left by a process that ended, is dropped.
  // Errors: InvalidArgument (journal of another model, or not a journal; names file and line),
  // Internal (the file cannot be written).
  static absl::StatusOr<Journal> open(const std::filesystem::path& file, std::string_view model);

  // Returns: null if there is no entry yet.
  const std::vector<TrialResult>* find(std::string_view task, std::string_view subject,
                                       const Item& item) const;

  // Appends an entry to the file; does nothing without one.
  // Errors: Internal if the write fails.
  absl::Status add(std::string_view task, std::string_view subject, const Item& item,
                   const std::vector<TrialResult>& results);

 private:
  std::filesystem::path file_;
  std::ofstream out_;
  std::map<std::string, std::vector<TrialResult>, std::less<>> entries_;
};

}  // namespace tessera
