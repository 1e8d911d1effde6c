#include "engine/retry_after.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr char kPayload[] = "tessera/retry-after-ms";

}  // namespace

absl::Status with_retry_after(absl::Status status, std::chrono::duration<double> time) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(std::max<int64_t>(ms, 1))));
  return status;
}

std::optional<std::chrono::milliseconds> retry_after_of(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  int64_t ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ms)) {
    return std::nullopt;
  }
  return std::chrono::milliseconds(ms);
}

}  // namespace tessera
