// /v1/log-level.
#include "server/endpoints/log_level.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/status_macros.h"
#include "server/json/body_fields.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"
#include "server/telemetry/log.h"

namespace tessera {

absl::StatusOr<std::string> parse_log_level_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json object, parse_body(body));
  std::string level;
  BodyFields fields(object);
  fields.text("level", level);
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  return level;
}

namespace {

absl::StatusOr<HttpResult> set_level(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const std::string level, parse_log_level_request(context.request.body));
  if (const absl::Status set = set_log_level(level); !set.ok()) {
    return invalid_field("level", std::string(set.message()));
  }
  return HttpResult(json_reply(R"({"status":"ok"})"));
}

}  // namespace

HttpResult answer_log_level(const EndpointContext& context) {
  return result_of(set_level(context));
}

}  // namespace tessera
