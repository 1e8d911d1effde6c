#include "server/generation/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "server/generation/finish_status.h"
#include "text/detokenizer.h"

namespace tessera {
namespace {

// Returns: whether the bytes begin inside a character, which a token before them began.
bool continues_character(std::string_view bytes) {
  return !bytes.empty() && continues_utf8(bytes.front());
}

}  // namespace

Choice::Choice(Args args)
    : service_(args.service),
      shown_{.logprobs = args.request.logprobs.has_value(),
             .echo_logprobs = args.request.echo_logprobs,
             .prompt_logprobs = args.request.prompt_logprobs.has_value(),
             .ids_as_text = args.request.token_ids_as_text,
             .special = args.request.each.keep_special,
             .reasoning = args.request.reasoning,
             .token_ids = args.request.token_ids},
      end_(args.service, args.request.each),
      generation_(std::move(args.generation)),
      queue_(std::move(args.queue)) {
  queue_->when_cut_off([&service = service_, id = id()] { service.cancel(id); });
  text.index = args.index;
  text.first = true;
  if (args.notation) {
    reader_.emplace(*args.notation);
  }
}

void Choice::begin_with(const std::string& prompt, std::span<const int32_t> ids) {
  echo_ = true;
  text.text = prompt;
  if (shown_.echo_logprobs) {
    expect_prompt_logprobs(ids, prompt);
  }
  characters_ = count_characters(prompt);
}

void Choice::expect_prompt_logprobs(std::span<const int32_t> ids) {
  if (prompt_.empty()) {
    expect_prompt_logprobs(ids, {});
  }
}

// `prompt`: the echoed text, of which each token gets its part; empty: it is not echoed. A special
// token has no part unless it is written out. A space that the tokenizer put before a text is none.
void Choice::expect_prompt_logprobs(std::span<const int32_t> ids, std::string_view prompt) {
  const Tokenizer& tokenizer = service_.tokenizer();
  int64_t offset = 0;
  bool begun = !tokenizer.strips_leading_space();
  for (const int32_t id : ids) {
    ChosenToken token{.token = text_of({id, 0}), .offset = offset, .first = prompt_.empty()};
    const std::string bytes = tokenizer.token_bytes(id, /*keep_special=*/true);
    const bool special = tokenizer.is_special(id);
    const bool spaced = bytes.starts_with(' ') && (!begun || !prompt.starts_with(bytes));
    token.text = bytes.substr(spaced ? 1 : 0);
    begun = begun || (!special && !bytes.empty());
    if (prompt.starts_with(token.text)) {
      prompt.remove_prefix(token.text.size());
    } else {
      token.text = special && !shown_.special ? "" : bytes;
    }
    token.offset -= continues_character(token.text) ? 1 : 0;
    offset += count_characters(token.text);
    token.text = shown_.ids_as_text ? token.token.bytes : std::move(token.text);
    prompt_.push_back(std::move(token));
  }
}

void Choice::show_prompt_ids(std::span<const int32_t> ids) {
  text.prompt_ids.assign(ids.begin(), ids.end());
}

// The first token is shown together with the others. For a prompt of one token the engine reports
// nothing.
void Choice::take_prompt(std::span<const TokenQueue::Token> tokens) {
  if (prompt_.empty()) {
    return;
  }
  for (const TokenQueue::Token& token : tokens) {
    TESSERA_CHECK(prompt_known_ < prompt_.size(), "the engine reports each token of a prompt once");
    ChosenToken& known = prompt_[prompt_known_++];
    ChosenToken made = chosen(token);
    made.text = std::move(known.text);
    made.offset = known.offset;
    known = std::move(made);
  }
  if (prompt_known_ < prompt_.size()) {
    return;
  }
  if (echo_ && shown_.echo_logprobs) {
    text.tokens = prompt_;
  }
  if (shown_.prompt_logprobs) {
    text.prompt = prompt_;
  }
  prompt_.clear();
}

void Choice::take_token(const TokenQueue::Token& token) {
  ++used.completion_tokens;
  logprob_sum_ += token.logprob;
  const bool thought = reader_ && reader_->thinking();
  read(generation_.text.push(token.id), /*end=*/false);
  if (shown_.token_ids) {
    text.ids.push_back(token.id);
  }
  if (shown_.logprobs) {
    ChosenToken& made = text.tokens.emplace_back(chosen(token));
    made.text = service_.tokenizer().token_bytes(token.id, shown_.special);
    made.offset = characters_ - (continues_character(made.text) ? 1 : 0);
    characters_ += count_characters(made.text);
    made.text = shown_.ids_as_text ? made.token.bytes : std::move(made.text);
  }
  if (thought || (reader_ && reader_->thinking())) {  // and so is everything before it
    used.reasoning_tokens = used.completion_tokens;
    for (auto at = text.tokens.rbegin(); at != text.tokens.rend() && !at->thought; ++at) {
      at->thought = true;
    }
  }
  if (generation_.text.stopped()) {
    service_.stop(generation_);
    read({}, /*end=*/true);
    text.finish_reason = "stop";
    text.stop = generation_.text.stop();
  } else if (reader_ && reader_->complete()) {
    service_.stop(generation_);
    text.finish_reason = "tool_calls";
  }
}

// Adds a piece of the generated text. `end`: it is the last.
void Choice::read(const std::string& piece, bool end) {
  if (!reader_) {
    text.text += piece;
    return;
  }
  AnswerPart part;
  reader_->push(piece, end, part);
  text.text += part.content;
  text.reasoning += shown_.reasoning ? part.reasoning : "";
  for (CallPart& call : part.calls) {
    if (text.calls.empty() || text.calls.back().index != call.index) {
      text.calls.push_back(std::move(call));
    } else {
      text.calls.back().arguments += call.arguments;
    }
  }
}

void Choice::take_finish(const Finish& finish) {
  text.stop_token = end_.stop_token(finish);
  text.context_full = end_.context_full(finish);
  const bool shows = text.stop_token && generation_.text.includes_stop();
  std::string rest = shows ? generation_.text.push(*text.stop_token) : "";
  rest += generation_.text.finish();
  read(rest, /*end=*/true);
  switch (finish.reason) {
    case FinishReason::stop:
      text.finish_reason = reader_ && reader_->has_calls() ? "tool_calls" : "stop";
      break;
    case FinishReason::length:
      text.finish_reason = generation_.text.stopped() ? "stop" : "length";
      text.stop = generation_.text.stop();
      break;
    case FinishReason::cancelled:
    case FinishReason::failed:
      cancelled = finish.reason == FinishReason::cancelled && finish.status.ok();
      failure = status_of(finish);
      break;
  }
}

void Choice::take_cut_off() {
  failure = absl::ResourceExhaustedError(
      "the client reads this answer too slowly, and other requests fill this server's memory");
}

std::size_t Choice::printed_bytes() const {
  constexpr std::size_t kIdBytes = 8;
  std::size_t bytes = queue_->printed_bytes() + text.text.size() +
                      (text.ids.size() + text.prompt_ids.size()) * kIdBytes;
  for (const std::vector<ChosenToken>* tokens : {&prompt_, &text.prompt, &text.tokens}) {
    bytes +=
        tokens->empty() ? 0 : tokens->size() * printed_token_bytes(1 + tokens->back().top.size());
  }
  return bytes;
}

void Choice::clear() {
  text.text.clear();
  text.reasoning.clear();
  text.calls.clear();
  text.tokens.clear();
  text.ids.clear();
  text.prompt_ids.clear();
  text.first = false;
}

double Choice::mean_logprob() const {
  return logprob_sum_ / static_cast<double>(std::max<int64_t>(used.completion_tokens, 1));
}

ChosenToken Choice::chosen(const TokenQueue::Token& token) const {
  ChosenToken made{.token = text_of({token.id, token.logprob}), .rank = token.rank};
  std::transform(token.top.begin(), token.top.end(), std::back_inserter(made.top),
                 [this](const TokenLogprob& other) { return text_of(other); });
  return made;
}

TokenText Choice::text_of(const TokenLogprob& token) const {
  return {shown_.ids_as_text ? fmt::format("token_id:{}", token.token)
                             : service_.tokenizer().token_bytes(token.token, /*keep_special=*/true),
          token.logprob, token.token};
}

}  // namespace tessera
