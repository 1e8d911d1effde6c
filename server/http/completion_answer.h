#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/http/handler.h"
#include "server/openai/request.h"

namespace tessera {

// Submits a completion or chat and makes its answer, whole or as server-sent events. Token ids
// come from the engine's thread; text and JSON are made on the connection's.
// Requires: `service` outlives the answer. Errors as Service::generate; nothing runs then.
absl::StatusOr<std::unique_ptr<HttpAnswer>> answer_completion(Service& service,
                                                              CompletionRequest request,
                                                              std::shared_ptr<HttpWaker> waker);

}  // namespace tessera
