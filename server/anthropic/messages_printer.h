#pragma once

#include <memory>
#include <string>

#include "server/dialect/answer_printer.h"

namespace tessera {

// Prints answers of /v1/messages.
std::unique_ptr<AnswerPrinter> make_messages_printer(const std::string& model);

// Returns: {"type":"error","error":{"type","message"}}. `code`: the HTTP status, which gives the
// type.
std::string print_messages_error(const absl::Status& status, int code);

// Returns: {"input_tokens": tokens}.
std::string print_token_count(std::size_t tokens);

}  // namespace tessera
