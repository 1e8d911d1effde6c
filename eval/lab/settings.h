#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::lab {

// The numbers of a method, by name. A method reads each with the value of its paper as default; a
// name that it does not read is refused.
class Settings {
 public:
  // Parses "budget=0.2:window=32"; empty: none is given.
  // Errors: InvalidArgument names the part that is no NAME=NUMBER.
  static absl::StatusOr<Settings> parse(const std::string& text);

  // Returns: the number of that name, or `otherwise`.
  double number(std::string_view name, double otherwise);
  int integer(std::string_view name, int otherwise) {
    return static_cast<int>(number(name, otherwise));
  }

  // Errors: InvalidArgument names a given number that was never read, and those that were.
  absl::Status check_all_read() const;

 private:
  std::map<std::string, double, std::less<>> given_;
  std::map<std::string, double, std::less<>> read_;  // with the values used
};

}  // namespace tessera::lab
