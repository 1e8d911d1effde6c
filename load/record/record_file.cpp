#include "load/record/record_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "load/request/json_text.h"

namespace tessera::load {
namespace {

using nlohmann::json;

absl::Status no_record(const std::filesystem::path& path, int64_t line) {
  return absl::InvalidArgumentError(
      absl::StrCat("--records: ", path.string(), ": line ", line, " is not a record of this tool"));
}

}  // namespace

absl::StatusOr<RecordFile> RecordFile::open(
    const std::filesystem::path& path, const std::string& run,
    const std::function<void(const RequestRecord&)>& earlier) {
  RecordFile file;
  if (path.empty()) {
    return file;
  }
  file.path_ = path;
  std::ifstream in(path);
  std::string line;
  uintmax_t complete = 0;
  for (int64_t number = 1; in && std::getline(in, line) && !in.eof(); ++number) {
    complete += line.size() + 1;
    if (number == 1) {
      const json head = parse_json(line);
      if (!head.is_object() || !head.contains("run")) return no_record(path, 1);
      if (head["run"] != run) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--records: ", path.string(), " belongs to another run: ", print_json(head["run"])));
      }
      continue;
    }
    const std::optional<RequestRecord> record = parse_record(line);
    if (!record) return no_record(path, number);
    earlier(*record);
    ++file.progress_.requests;
    file.progress_.next_number = std::max(file.progress_.next_number, record->number + 1);
    file.progress_.next_session = std::max(file.progress_.next_session, record->session + 1);
    file.progress_.seconds = std::max(file.progress_.seconds, record->end);
  }
  in.close();
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    std::filesystem::resize_file(path, complete, ignored);
  }
  file.out_.open(path, std::ios::app);
  if (complete == 0) {
    file.out_ << print_json({{"run", run}}) << "\n";
  }
  if (!file.out_.flush()) {
    return absl::InternalError(absl::StrCat("--records: cannot write ", path.string()));
  }
  return file;
}

absl::Status RecordFile::add(const RequestRecord& record) {
  if (path_.empty()) {
    return absl::OkStatus();
  }
  out_ << print_record(record) << "\n";
  return out_ ? absl::OkStatus()
              : absl::InternalError(absl::StrCat("--records: cannot write ", path_.string()));
}

}  // namespace tessera::load
