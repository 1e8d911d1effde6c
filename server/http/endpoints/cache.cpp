// /v1/cache and /v1/cache/flush.
#include "server/http/replies.h"
#include "server/http/route_table.h"
#include "server/openai/response.h"
#include "server/service.h"

namespace tessera {

HttpResult answer_cache(const EndpointContext& context) {
  return json_reply(print_cache(context.service.engine().stats()));
}

HttpResult answer_cache_flush(const EndpointContext& context) {
  context.service.engine().flush_cache();
  return json_reply(R"({"status":"ok"})");
}

}  // namespace tessera
