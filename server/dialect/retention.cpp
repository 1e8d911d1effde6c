#include "server/dialect/retention.h"

#include <chrono>
#include <string>

namespace tessera {

void read_retention(BodyFields& fields, GenerateRequest& out) {
  std::string key;
  std::string retention;
  fields.text("prompt_cache_key", key);
  fields.text("prompt_cache_retention", retention);
  if (retention == "24h") {
    out.retention = std::chrono::hours(24);
  } else if (retention == "in_memory" || retention == "in-memory" ||
             (retention.empty() && !key.empty())) {
    out.retention = kShortTtl;
  } else if (!retention.empty()) {
    fields.refuse("prompt_cache_retention", "must be in_memory or 24h");
  }
}

}  // namespace tessera
