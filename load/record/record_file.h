#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "load/record/record.h"

namespace tessera::load {

// Records of all requests, in a file of JSON lines. An interrupted run goes on where its file ends.
class RecordFile {
 public:
  // State of the run so far.
  struct Progress {
    uint64_t requests = 0;  // that were recorded
    uint64_t next_number = 0;
    uint64_t next_session = 0;
    double seconds = 0;  // the last end
  };

  // Without a file: keeps nothing. `run` names the settings that must be equal. Passes records of
  // an earlier part of the run to `earlier`; an incomplete last line is dropped.
  // Errors: InvalidArgument (the file of another run, or no records), Internal (not writable).
  static absl::StatusOr<RecordFile> open(const std::filesystem::path& path, const std::string& run,
                                         const std::function<void(const RequestRecord&)>& earlier);

  const Progress& progress() const { return progress_; }

  // Errors: Internal.
  absl::Status add(const RequestRecord& record);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
  Progress progress_;
};

}  // namespace tessera::load
