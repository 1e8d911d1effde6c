// /health, /metrics and /version.
#include <fmt/format.h>

#include "server/base/commit.h"
#include "server/generation/service.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

HttpResult answer_health(const EndpointContext& context) {
  if (!context.service.ready()) {
    return error_reply(absl::UnavailableError("the server is shutting down"));
  }
  return json_reply(R"({"status":"ok"})");
}

HttpResult answer_metrics(const EndpointContext& context) {
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = context.service.expose_metrics();
  return reply;
}

HttpReply answer_version() {
  return json_reply(fmt::format(R"({{"version":"{}","commit":"{}"}})", TESSERA_VERSION, commit()));
}

}  // namespace tessera
