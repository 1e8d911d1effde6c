#include "eval/lab/settings.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera::lab {

absl::StatusOr<Settings> Settings::parse(const std::string& text) {
  Settings settings;
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(text, ':', absl::SkipEmpty()))) {
    const std::vector<std::string> field = absl::StrSplit(part, absl::MaxSplits('=', 1));
    double value = 0;
    if (field.size() != 2 || field[0].empty() || !absl::SimpleAtod(field[1], &value)) {
      return absl::InvalidArgumentError(absl::StrCat("'", part, "' is not NAME=NUMBER"));
    }
    settings.given_.emplace(field[0], value);
  }
  return settings;
}

double Settings::number(std::string_view name, double otherwise) {
  const auto given = given_.find(name);
  const double value = given == given_.end() ? otherwise : given->second;
  read_.emplace(name, value);
  return value;
}

absl::Status Settings::check_all_read() const {
  for (const auto& [name, value] : given_) {
    if (!read_.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "has no number '", name, "'; it has ",
          read_.empty() ? "none" : absl::StrJoin(read_, ", ", absl::PairFormatter("="))));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::lab
