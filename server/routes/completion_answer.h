#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/dialect/answer_printer.h"
#include "server/http/handler.h"
#include "server/request/completion_request.h"

namespace tessera {

// Submits a completion or chat and returns its answer in a dialect, whole or as server-sent events.
// Token ids come from the engine thread; text and JSON are made by the connection.
// Requires: `service` outlives the answer.
// Errors: as Service::generate; no sequence keeps running then.
absl::StatusOr<std::unique_ptr<HttpAnswer>> answer_completion(
    Service& service, CompletionRequest request, std::unique_ptr<AnswerPrinter> printer,
    std::shared_ptr<Waker> waker);

}  // namespace tessera
