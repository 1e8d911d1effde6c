#include "server/served_model.h"

#include <fmt/format.h>

#include <utility>

#include "server/openai/error.h"
#include "server/service.h"

namespace tessera {

absl::Status check_model(const Service& service, std::string_view asked) {
  if (asked.empty() || asked == service.model_name()) {
    return absl::OkStatus();
  }
  absl::Status status = with_code(
      absl::NotFoundError(fmt::format("the model '{}' does not exist; this server has '{}'", asked,
                                      service.model_name())),
      "model_not_found");
  return with_param(std::move(status), "model");
}

}  // namespace tessera
