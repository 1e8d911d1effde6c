#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "server/generation/answer_text.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

class Tokenizer;

// ChoiceText::finish_reason of a sequence that the server cancelled; others report an error.
inline constexpr std::string_view kCancelled = "cancelled";

// Adds a part of an answer as messages of Generate. Clients limit the size of a message, so a long
// part, such as an echo, becomes several; what ended the sequence stands in the last of them.
void add_messages(const ChoiceText& part, const std::string& request_id, const Tokenizer& tokenizer,
                  std::deque<v1::GenerateResponse>& out);

// Returns: true if a part has something that a message shows.
bool shows_any(const ChoiceText& part);

v1::Usage to_wire(const Usage& usage);

}  // namespace tessera
