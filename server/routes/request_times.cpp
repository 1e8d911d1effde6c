#include "server/routes/request_times.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/base/seconds.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

absl::StatusOr<std::optional<milliseconds>> time_of(const HttpRequest& http,
                                                    std::string_view name) {
  const std::string_view text = http.header(name);
  if (text.empty()) {
    return std::nullopt;
  }
  const std::optional<milliseconds> time = parse_seconds(text);
  if (!time.has_value()) {
    return invalid_field(name, fmt::format("the header {} must be a number of seconds above 0, at "
                                           "most {}",
                                           name, kMostSeconds));
  }
  return time;
}

}  // namespace

absl::Status read_request_times(const HttpRequest& http,
                                std::chrono::steady_clock::time_point received,
                                GenerateRequest& out) {
  TESSERA_ASSIGN_OR_RETURN(out.queue_timeout, time_of(http, "x-queue-timeout"));
  TESSERA_ASSIGN_OR_RETURN(const std::optional<milliseconds> whole,
                           time_of(http, "x-request-timeout"));
  if (whole.has_value()) {
    out.deadline = received + *whole;
  }
  return absl::OkStatus();
}

}  // namespace tessera
