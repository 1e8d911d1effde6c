#pragma once

#include <string>
#include <string_view>

namespace tessera {

// While one exists, the BodyFields of its thread leave out fields of a body that they do not know,
// where they refuse them else. It names those that were left out. Fields inside of others, such as
// those of a message, are refused all the same.
class LenientFields {
 public:
  LenientFields();
  ~LenientFields();
  LenientFields(const LenientFields&) = delete;
  LenientFields& operator=(const LenientFields&) = delete;

  // Called by BodyFields for an unknown field of a body.
  // Returns: false if the field is refused, because the thread has none of these.
  static bool leave_out(std::string_view name);

  // Returns: a warning in printable ASCII that names the first few fields; empty without one.
  const std::string& warning() const { return warning_; }

 private:
  std::string warning_;
  int named_ = 0;
  LenientFields* const before_;
};

}  // namespace tessera
