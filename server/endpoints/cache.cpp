// /v1/cache and /v1/cache/flush.
#include <algorithm>

#include "engine/kv/kv_presets.h"
#include "server/generation/service.h"
#include "server/openai/cache_report.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"
#include "server/tenants/caller.h"

namespace tessera {

namespace {

// Returns: names of the presets that requests may have, the server's default first.
std::vector<std::string> served_presets(const Engine& engine) {
  const KvPreset& own = engine.options().kv;
  std::vector<std::string> names = {own.name};
  const auto add = [&](const KvPreset& preset) {
    if (std::find(names.begin(), names.end(), preset.name) == names.end()) {
      names.push_back(preset.name);
    }
  };
  std::for_each(engine.options().kv_also.begin(), engine.options().kv_also.end(), add);
  for (const KvPreset& preset : kv_choices()) {
    if (engine.serves(preset.policy)) {
      add(preset);
    }
  }
  return names;
}

}  // namespace

HttpResult answer_cache(const EndpointContext& context) {
  const Engine& engine = context.service.engine();
  return json_reply(
      print_cache({.stats = engine.stats(),
                   .options = engine.options(),
                   .outline = engine.outline(),
                   .presets = served_presets(engine),
                   .salt_mark = PrefixOutline::salt_mark(context.caller->cache_salt(""))}));
}

HttpResult answer_cache_flush(const EndpointContext& context) {
  context.service.engine().flush_cache();
  return json_reply(R"({"status":"ok"})");
}

}  // namespace tessera
