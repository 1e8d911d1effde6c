// /v1/log-level.
#include <nlohmann/json.hpp>
#include <string>

#include "models/status_macros.h"
#include "server/http/replies.h"
#include "server/http/route_table.h"
#include "server/log.h"
#include "server/openai/body_fields.h"

namespace tessera {

namespace {

absl::StatusOr<HttpResult> set_level(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json object, parse_body(context.request.body));
  std::string level;
  BodyFields fields(object);
  fields.text("level", level);
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
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
