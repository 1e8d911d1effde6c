#pragma once

#include <fstream>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "load/request/variates.h"
#include "load/workload/workload.h"

namespace tessera::load {

// A length that is drawn for each request: "64", or "32-512" (uniform), or "~200" (lognormal with
// this median and a spread of 0.7, at most ten times the median).
class Length {
 public:
  // Errors: InvalidArgument.
  static absl::StatusOr<Length> parse(std::string_view text);
  int32_t draw(Variates& variates) const;

 private:
  enum class Kind { fixed, uniform, lognormal };
  Kind kind_ = Kind::fixed;
  int32_t low_ = 0;
  int32_t high_ = 0;
};

// Reads the settings of one spec. The first error is kept; finish() also refuses settings that
// were not read.
class SpecReader {
 public:
  explicit SpecReader(const WorkloadSpec& spec) : spec_(spec) {}

  double number(const std::string& name, double fallback, double min, double max);
  int32_t integer(const std::string& name, int32_t fallback, int32_t min, int32_t max);
  Length length(const std::string& name, const std::string& fallback);
  std::string text(const std::string& name, const std::string& fallback = {});
  // Fields that all workloads take: salt, priority, kv, temperature.
  nlohmann::json fields();
  absl::Status finish() const;
  // Returns: the file that the setting `name` names, opened after finish().
  // Errors: also NotFound.
  absl::StatusOr<std::ifstream> finish_and_open(const std::string& name);

 private:
  const std::string* find(const std::string& name);
  void refuse(const std::string& name, const std::string& reason);

  const WorkloadSpec& spec_;
  std::set<std::string> read_;
  absl::Status error_;
};

}  // namespace tessera::load
