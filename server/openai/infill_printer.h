#pragma once

#include <memory>
#include <string>

#include "server/dialect/answer_printer.h"

namespace tessera {

// Prints answers of /infill as llama-server does: objects with `content`. The last event of a
// stream has `"stop": true` and the numbers of tokens, and no "[DONE]" follows.
std::unique_ptr<AnswerPrinter> make_infill_printer(const std::string& model);

}  // namespace tessera
