#include "server/grpc/answer_fields.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

constexpr std::size_t kEchoBytes = 64 << 10;  // of one message

// Adds a part of a call to the same call's part of this message.
void add_call(CallPart part, v1::GenerateResponse& out) {
  const int count = out.tool_calls_size();
  if (count > 0 && out.tool_calls(count - 1).index() == part.index) {
    out.mutable_tool_calls(count - 1)->mutable_arguments()->append(part.arguments);
    return;
  }
  v1::ToolCallPart& call = *out.add_tool_calls();
  call.set_index(part.index);
  call.set_id(std::move(part.id));
  call.set_name(std::move(part.name));
  call.set_arguments(std::move(part.arguments));
}

}  // namespace

AnswerFields::AnswerFields(Args args) : args_(std::move(args)) {
  if (args_.notation) {
    reader_.emplace(*args_.notation);
  }
}

void AnswerFields::add_echo(v1::GenerateResponse& out) {
  const std::string& text = *args_.echo;
  std::size_t end = std::min(text.size(), echoed_ + kEchoBytes);
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;  // not inside a character
  }
  out.mutable_text()->append(text, echoed_, end - echoed_);
  echoed_ = end;
}

void AnswerFields::add(const SeenToken& token, v1::GenerateResponse& out) {
  if (ended()) {
    return;  // the engine ran ahead
  }
  ++tokens_;
  logprob_sum_ += token.logprob.value_or(0);
  TextStream& text = args_.generation.text;
  read(text.push(token.token), /*end=*/false, out);
  out.add_token_ids(token.token);
  if (args_.logprobs) {
    *out.add_logprobs() = to_wire(token, args_.service.tokenizer());
  }
  if (text.stopped()) {
    read({}, /*end=*/true, out);
  }
  complete_ = reader_ && reader_->complete();
  if (ended()) {
    args_.service.stop(args_.generation);
  }
}

void AnswerFields::finish(const Finish& finish, v1::GenerateResponse& out) {
  TextStream& text = args_.generation.text;
  const FinishReason reason = finish.reason;
  if (!ended()) {
    const std::optional<int32_t> stop = args_.end.stop_token(finish);
    std::string rest = stop && text.includes_stop() ? text.push(*stop) : "";
    rest += text.finish();
    read(rest, /*end=*/true, out);
    if (stop) {
      out.set_stop_token_id(*stop);
    }
    out.set_context_full(args_.end.context_full(finish));
  }
  if (text.stopped()) {
    out.set_stop_text(text.stop());
    out.set_finish_reason(v1::FINISH_REASON_STOP);
  } else if (complete_ || (reason == FinishReason::stop && reader_ && reader_->has_calls())) {
    out.set_finish_reason(v1::FINISH_REASON_TOOL_CALLS);
  } else {
    out.set_finish_reason(to_wire(reason));
  }
}

double AnswerFields::mean_logprob() const {
  return logprob_sum_ / static_cast<double>(std::max(tokens_, 1));
}

// Adds a piece of the generated text. `end`: it is the last.
void AnswerFields::read(const std::string& piece, bool end, v1::GenerateResponse& out) {
  if (!reader_) {
    out.mutable_text()->append(piece);
    return;
  }
  AnswerPart part;
  reader_->push(piece, end, part);
  out.mutable_text()->append(part.content);
  if (args_.reasoning) {
    out.mutable_reasoning()->append(part.reasoning);
  }
  for (CallPart& call : part.calls) {
    add_call(std::move(call), out);
  }
}

}  // namespace tessera
