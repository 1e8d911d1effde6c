#include "load/workload/spec.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace tessera::load {
namespace {

constexpr double kSpread = 0.7;
constexpr int32_t kMaxLength = 10'000'000;

}  // namespace

absl::StatusOr<WorkloadSpec> WorkloadSpec::parse(std::string_view text) {
  WorkloadSpec spec;
  spec.text = std::string(text);
  const std::vector<std::string> parts = absl::StrSplit(spec.text, ':');
  spec.name = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(spec.text, ": '", parts[i], "' must have the form NAME=VALUE"));
    }
    spec.settings[parts[i].substr(0, equals)] = parts[i].substr(equals + 1);
  }
  return spec;
}

absl::StatusOr<Length> Length::parse(std::string_view text) {
  Length length;
  const std::string all(text);
  const size_t dash = all.find('-');
  bool valid = false;
  if (!all.empty() && all[0] == '~') {
    length.kind_ = Kind::lognormal;
    valid = absl::SimpleAtoi(all.substr(1), &length.low_);
    length.high_ = length.low_;
  } else if (dash != std::string::npos) {
    length.kind_ = Kind::uniform;
    valid = absl::SimpleAtoi(all.substr(0, dash), &length.low_) &&
            absl::SimpleAtoi(all.substr(dash + 1), &length.high_);
  } else {
    valid = absl::SimpleAtoi(all, &length.low_);
    length.high_ = length.low_;
  }
  if (!valid || length.low_ < 1 || length.high_ < length.low_ || length.high_ > kMaxLength) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", all, "' is not a length: N, MIN-MAX or ~MEDIAN, at least 1"));
  }
  return length;
}

int32_t Length::draw(Variates& variates) const {
  switch (kind_) {
    case Kind::fixed:
      return low_;
    case Kind::uniform:
      return low_ +
             static_cast<int32_t>(variates.integers().below(static_cast<size_t>(high_ - low_) + 1));
    case Kind::lognormal: {
      const double drawn = low_ * std::exp(kSpread * variates.normal());
      return static_cast<int32_t>(std::clamp(drawn, 1.0, 10.0 * low_));
    }
  }
  return low_;
}

const std::string* SpecReader::find(const std::string& name) {
  read_.insert(name);
  const auto found = spec_.settings.find(name);
  return found == spec_.settings.end() ? nullptr : &found->second;
}

void SpecReader::refuse(const std::string& name, const std::string& reason) {
  if (error_.ok()) {
    error_ = absl::InvalidArgumentError(absl::StrCat(spec_.text, ": ", name, ": ", reason));
  }
}

double SpecReader::number(const std::string& name, double fallback, double min, double max) {
  const std::string* value = find(name);
  double number = fallback;
  if (value != nullptr &&
      (!absl::SimpleAtod(*value, &number) || !(number >= min && number <= max))) {
    refuse(name, absl::StrCat("'", *value, "' is not a number from ", min, " to ", max));
    return fallback;
  }
  return number;
}

int32_t SpecReader::integer(const std::string& name, int32_t fallback, int32_t min, int32_t max) {
  const std::string* value = find(name);
  int32_t number = fallback;
  if (value != nullptr && (!absl::SimpleAtoi(*value, &number) || number < min || number > max)) {
    refuse(name, absl::StrCat("'", *value, "' is not an integer from ", min, " to ", max));
    return fallback;
  }
  return number;
}

Length SpecReader::length(const std::string& name, const std::string& fallback) {
  const std::string* value = find(name);
  absl::StatusOr<Length> length = Length::parse(value == nullptr ? fallback : *value);
  if (!length.ok()) {
    refuse(name, std::string(length.status().message()));
    return Length();
  }
  return *length;
}

std::string SpecReader::text(const std::string& name, const std::string& fallback) {
  const std::string* value = find(name);
  return value == nullptr ? fallback : *value;
}

nlohmann::json SpecReader::fields() {
  nlohmann::json fields = nlohmann::json::object();
  if (const std::string* salt = find("salt")) fields["cache_salt"] = *salt;
  if (const std::string* kv = find("kv")) fields["kv_cache"] = *kv;
  if (find("priority") != nullptr) fields["priority"] = integer("priority", 0, -1000, 1000);
  if (find("temperature") != nullptr) fields["temperature"] = number("temperature", 0, 0, 100);
  return fields;
}

absl::Status SpecReader::finish() const {
  if (!error_.ok()) {
    return error_;
  }
  for (const auto& [name, value] : spec_.settings) {
    if (!read_.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(spec_.text, ": ", spec_.name, " has no setting '", name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::ifstream> SpecReader::finish_and_open(const std::string& name) {
  const std::string path = text(name);
  TESSERA_RETURN_IF_ERROR(finish());
  std::ifstream file(path);
  if (path.empty() || !file) {
    return absl::NotFoundError(absl::StrCat(spec_.text, ": ", name, ": cannot read '", path, "'"));
  }
  return file;
}

}  // namespace tessera::load
