#include "server/base/error.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/cord.h"

namespace tessera {

namespace {

constexpr absl::string_view kParam = "tessera/param";
constexpr absl::string_view kCode = "tessera/code";

nlohmann::json payload(const absl::Status& status, absl::string_view url) {
  const auto value = status.GetPayload(url);
  return value ? nlohmann::json(std::string(*value)) : nlohmann::json(nullptr);
}

std::string_view type_name(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

absl::Status invalid_field(std::string_view param, std::string_view message,
                           std::string_view code) {
  absl::Status status = with_param(absl::InvalidArgumentError(std::string(message)), param);
  return code.empty() ? status : with_code(std::move(status), code);
}

absl::Status with_param(absl::Status status, std::string_view param) {
  status.SetPayload(kParam, absl::Cord(std::string(param)));
  return status;
}

absl::Status with_code(absl::Status status, std::string_view code) {
  status.SetPayload(kCode, absl::Cord(std::string(code)));
  return status;
}

int http_status(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string print_error(const absl::Status& status) {
  const nlohmann::ordered_json error = {{"message", std::string(status.message())},
                                        {"type", type_name(http_status(status))},
                                        {"param", payload(status, kParam)},
                                        {"code", payload(status, kCode)}};
  return nlohmann::ordered_json({{"error", error}})
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tessera
