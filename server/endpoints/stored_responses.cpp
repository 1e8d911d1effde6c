#include "server/endpoints/stored_responses.h"

#include <fmt/format.h>

#include "server/base/error.h"
#include "server/base/unique_id.h"
#include "server/request/request_limits.h"
#include "server/tenants/caller.h"

namespace tessera {

const std::string& owner_of(const EndpointContext& context) {
  return context.caller->turn_name();
}

std::string no_such_response(std::string_view id) {
  return fmt::format("there is no stored response '{}' (any more)", id.substr(0, kMaxRequestId));
}

absl::StatusOr<std::shared_ptr<const StoredResponse>> find_previous(const EndpointContext& context,
                                                                    const std::string& id) {
  if (id.empty()) return nullptr;
  auto found = context.responses.find(owner_of(context), id);
  if (found == nullptr) {
    return invalid_field("previous_response_id", no_such_response(id),
                         "previous_response_not_found");
  }
  return found;
}

}  // namespace tessera
