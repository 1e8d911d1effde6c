#include "files/gguf/gguf_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/json_fields.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr int32_t kMaxSplits = 9999;

// The name of file `number`, from 1 on, of a split model.
std::string split_ending(int32_t number, int32_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number, count);
}

// Returns: true for a file of a split model that is not the first.
bool is_later_split(const std::string& name) {
  const size_t of = name.rfind("-of-");
  return of != std::string::npos && of >= 6 && name.size() == of + 14 && name[of - 6] == '-' &&
         name.substr(of - 5, 5) != "00001";
}

absl::Status check_split_number(const GgufFile& file, int32_t expected) {
  const auto found = file.metadata().find("split.no");
  absl::StatusOr<json> number = json();
  if (found != file.metadata().end()) number = found->second.to_json();
  if (number.ok() && *number == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file.path().string(), ": key \"split.no\": is not ", expected));
}

absl::Status check_distinct(const std::vector<GgufFile>& files) {
  std::set<std::string_view> known;
  for (const GgufFile& file : files) {
    for (const auto& [name, tensor] : file.tensors()) {
      if (!known.insert(name).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            file.path().string(), ": tensor ", in_quotes(name), ": an earlier file has it too"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<std::filesystem::path>> find_gguf(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    if (!std::filesystem::exists(path, ignored)) return std::nullopt;
    return path;
  }
  if (std::filesystem::exists(path / "config.json", ignored)) return std::nullopt;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(path, ignored), end; entry != end;
       entry.increment(ignored)) {
    std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, ".gguf") && !is_later_split(name)) names.push_back(std::move(name));
  }
  if (names.empty()) return std::nullopt;
  if (names.size() == 1) return path / names.front();
  std::sort(names.begin(), names.end());
  names.resize(std::min<size_t>(names.size(), 10));
  return absl::InvalidArgumentError(absl::StrCat(
      path.string(), ": has several GGUF files; name one of them: ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<GgufModel> GgufModel::open(const std::filesystem::path& path) {
  GgufModel model;
  TESSERA_ASSIGN_OR_RETURN(GgufFile first, GgufFile::open(path));
  model.files_.push_back(std::move(first));
  TESSERA_RETURN_IF_ERROR(model.read_fields());
  TESSERA_RETURN_IF_ERROR(model.open_splits());
  return model;
}

absl::Status GgufModel::read_fields() {
  fields_ = json::object();
  for (const auto& [key, entry] : files_.front().metadata()) {
    if (entry.is_large()) continue;
    TESSERA_ASSIGN_OR_RETURN(fields_[key], value(key));
  }
  return absl::OkStatus();
}

absl::Status GgufModel::open_splits() {
  const std::filesystem::path path = files_.front().path();
  JsonFields fields(fields_, path.string());
  const int32_t count = fields.integer_or("split.count", 0, 0, kMaxSplits);
  const int32_t number = fields.integer_or("split.no", 0, 0, kMaxSplits);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (count < 2) return absl::OkStatus();
  const std::string file_name = path.filename().string();
  if (number != 0 || !absl::EndsWith(file_name, split_ending(1, count))) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": is file ", number + 1, " of a model in ", count,
                     " files; name the first, which ends in ", split_ending(1, count)));
  }
  const std::string stem = file_name.substr(0, file_name.size() - split_ending(1, count).size());
  for (int32_t next = 2; next <= count; ++next) {
    TESSERA_ASSIGN_OR_RETURN(
        GgufFile file, GgufFile::open(path.parent_path() / (stem + split_ending(next, count))));
    TESSERA_RETURN_IF_ERROR(check_split_number(file, next - 1));
    files_.push_back(std::move(file));
  }
  return check_distinct(files_);
}

absl::StatusOr<json> GgufModel::value(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return json();
  absl::StatusOr<json> read = found->to_json();
  if (read.ok()) return read;
  return named(key, read.status());
}

absl::StatusOr<std::vector<std::string_view>> GgufModel::texts(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::vector<std::string_view>();
  absl::StatusOr<std::vector<std::string_view>> read = found->texts();
  if (read.ok()) return read;
  return named(key, read.status());
}

const GgufValue* GgufModel::find(std::string_view key) const {
  const GgufMetadata& metadata = files_.front().metadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? nullptr : &found->second;
}

absl::Status GgufModel::named(std::string_view key, const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat(path().string(), ": key ", in_quotes(key), ": ",
                                                  std::string(status.message())));
}

const StoredTensor* GgufModel::find_tensor(std::string_view name) const {
  for (const GgufFile& file : files_) {
    const auto found = file.tensors().find(name);
    if (found != file.tensors().end()) return &found->second;
  }
  return nullptr;
}

}  // namespace tessera
