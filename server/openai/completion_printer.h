#pragma once

#include <memory>

#include "server/dialect/answer_printer.h"
#include "server/request/completion_request.h"

namespace tessera {

class Service;

// Prints answers of /v1/completions and /v1/chat/completions.
std::unique_ptr<AnswerPrinter> make_completion_printer(const Service& service,
                                                       const CompletionRequest& request);

}  // namespace tessera
