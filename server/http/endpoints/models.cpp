// /v1/models and /v1/models/NAME.
#include "server/http/replies.h"
#include "server/http/route_table.h"
#include "server/openai/response.h"
#include "server/served_model.h"
#include "server/service.h"

namespace tessera {

namespace {

ModelCard card(const EndpointContext& context) {
  return {context.service.model_name(), context.started,
          context.service.engine().options().context};
}

}  // namespace

HttpResult answer_models(const EndpointContext& context) {
  return json_reply(print_models(card(context)));
}

HttpResult answer_model(const EndpointContext& context) {
  const absl::Status known = check_model(context.service, context.rest);
  return known.ok() ? json_reply(print_model(card(context))) : error_reply(known);
}

}  // namespace tessera
