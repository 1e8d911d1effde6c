#include "server/generation/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/adapters/adapter_store.h"
#include "server/base/error.h"
#include "server/generation/service.h"
#include "server/request/request_limits.h"

namespace tessera {

absl::Status check_model(const Service& service, std::string_view asked) {
  const std::span<const std::string> aliases = service.aliases();
  if (asked.empty() || asked == service.model_name() ||
      std::find(aliases.begin(), aliases.end(), asked) != aliases.end() ||
      (service.adapters() != nullptr && service.adapters()->has(asked)) ||
      (service.has_any_name() && asked.size() <= kMaxModelName)) {
    return absl::OkStatus();
  }
  absl::Status status = with_code(
      absl::NotFoundError(fmt::format("the model '{}' does not exist; this server has '{}'",
                                      asked.substr(0, kMaxModelName), service.model_name())),
      "model_not_found");
  return with_param(std::move(status), "model");
}

const std::string& answered_name(const Service& service, const std::string& asked) {
  return asked.empty() ? service.model_name() : asked;
}

}  // namespace tessera
