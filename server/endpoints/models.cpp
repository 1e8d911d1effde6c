// /v1/models and /v1/models/NAME.
#include "server/adapters/adapter_store.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/openai/response.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

ModelCard card(const EndpointContext& context, std::string_view name) {
  const AdapterStore* const adapters = context.service.adapters();
  const bool adapts = adapters != nullptr && adapters->has(name);
  const std::string& base = context.service.model_name();
  return {.name = std::string(name),
          .created = context.started,
          .context = context.service.engine().options().context,
          .root = adapts ? std::string(name) : base,
          .parent = adapts ? base : ""};
}

}  // namespace

HttpResult answer_models(const EndpointContext& context) {
  std::vector<ModelCard> cards = {card(context, context.service.model_name())};
  for (const std::string& alias : context.service.aliases()) {
    cards.push_back(card(context, alias));
  }
  if (const AdapterStore* adapters = context.service.adapters()) {
    for (const std::string& name : adapters->names()) {
      cards.push_back(card(context, name));
    }
  }
  return json_reply(print_models(cards));
}

HttpResult answer_model(const EndpointContext& context) {
  const absl::Status known = check_model(context.service, context.rest);
  return known.ok() ? json_reply(print_model(card(context, context.rest))) : error_reply(known);
}

}  // namespace tessera
