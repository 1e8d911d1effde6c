#include "server/routes/replies.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "engine/retry_after.h"
#include "server/anthropic/messages_printer.h"
#include "server/base/error.h"

namespace tessera {

HttpReply json_reply(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

HttpReply error_reply(const absl::Status& status) {
  HttpReply reply;
  reply.status = http_status(status);
  reply.body = print_error(status);
  if (reply.status == 429 || reply.status == 503) {
    const auto wait = retry_after_of(status).value_or(std::chrono::seconds(1));
    reply.headers.emplace_back(
        "Retry-After", fmt::format("{}", std::chrono::ceil<std::chrono::seconds>(wait).count()));
  } else if (reply.status == 401) {
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return reply;
}

HttpReply error_reply_at(std::string_view path, const absl::Status& status) {
  return error_reply_at(path, status, http_status(status));
}

HttpReply error_reply_at(std::string_view path, const absl::Status& status, int code) {
  HttpReply reply = error_reply(status);
  reply.status = code;
  if (is_of_messages(path)) {
    reply.body = print_messages_error(status, code);
  }
  return reply;
}

bool is_of_messages(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  return path.starts_with(kMessages) &&
         (path.size() == kMessages.size() || path[kMessages.size()] == '/');
}

}  // namespace tessera
