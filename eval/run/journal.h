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

// What has been computed so far, in a file of JSON lines, so that a run that was interrupted goes
// on where it was. An entry counts only for the very same tokens: other tasks, samples or seeds
// find nothing and are computed.
class Journal {
 public:
  // Without a file: keeps nothing. With one: reads what is there and will append to it. `model`
  // says what was evaluated; a journal of anything else is refused. A last line that was cut off,
  // by the end of the process, is dropped. Errors: InvalidArgument (of another model, or no
  // journal; names file and line), Internal (the file cannot be written).
  static absl::StatusOr<Journal> open(const std::filesystem::path& file, std::string_view model);

  // Null: not there yet.
  const std::vector<TrialResult>* find(std::string_view task, std::string_view subject,
                                       const Item& item) const;

  absl::Status add(std::string_view task, std::string_view subject, const Item& item,
                   const std::vector<TrialResult>& results);

 private:
  std::filesystem::path file_;
  std::ofstream out_;
  std::map<std::string, std::vector<TrialResult>, std::less<>> entries_;
};

}  // namespace tessera
