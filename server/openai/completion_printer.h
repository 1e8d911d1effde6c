#pragma once

#include <memory>

#include "server/http/answer_printer.h"
#include "server/openai/request.h"

namespace tessera {

// Prints answers of /v1/completions and /v1/chat/completions.
std::unique_ptr<AnswerPrinter> make_completion_printer(const Service& service,
                                                       const CompletionRequest& request);

}  // namespace tessera
