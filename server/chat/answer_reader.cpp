#include "server/chat/answer_reader.h"

#include <algorithm>
#include <limits>
#include <string>

namespace tessera {

AnswerReader::AnswerReader(const AnswerNotation& notation)
    : tools_(notation.tools == nullptr
                 ? nullptr
                 : notation.tools->make_parser({notation.forced, notation.types})),
      custom_(notation.custom_tools),
      one_call_(notation.one_call) {
  if (notation.thoughts && !notation.forced) {
    thoughts_.emplace(notation.open_thought);
  }
}

void AnswerReader::push(std::string_view text, bool end, AnswerPart& out) {
  const std::string rest =
      thoughts_ ? thoughts_->push(text, end, out.reasoning) : std::string(text);
  if (tools_ == nullptr) {
    out.content += rest;
    return;
  }
  if (complete()) {
    return;
  }
  tools_->push(rest, end, out);
  if (complete()) {
    out.calls.resize(std::min<std::size_t>(out.calls.size(), 1));
  }
  custom_.apply(out.calls, end ? std::numeric_limits<int32_t>::max() : tools_->ended());
}

}  // namespace tessera
