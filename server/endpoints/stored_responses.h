#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/responses/response_store.h"
#include "server/routes/endpoint.h"

namespace tessera {

// Returns: the owner of a client's stored responses: a tenant, or one key.
const std::string& owner_of(const EndpointContext& context);

// Returns: the message about a response that is not there. `id`: as the client sent it.
std::string no_such_response(std::string_view id);

// Returns: the response that a request continues; null if its id is empty.
// Errors: InvalidArgument that names previous_response_id.
absl::StatusOr<std::shared_ptr<const StoredResponse>> find_previous(const EndpointContext& context,
                                                                    const std::string& id);

}  // namespace tessera
