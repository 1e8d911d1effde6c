#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/chat/answer_reader.h"
#include "server/generation/answer_end.h"
#include "server/generation/answer_text.h"
#include "server/generation/service.h"
#include "server/generation/token_queue.h"
#include "server/request/completion_request.h"

namespace tessera {

// One sequence of an answer. Converts the engine's events, token by token, to the data that JSON
// shows. Used by the answer's reader.
class Choice {
 public:
  struct Args {
    Service& service;
    const CompletionRequest& request;  // used by the constructor only
    int32_t index = 0;
    std::optional<AnswerNotation> notation;  // of a chat
    Generation generation;
    std::shared_ptr<TokenQueue> queue;
  };

  // Up to now.
  struct Used {
    int64_t completion_tokens = 0;
    int64_t reasoning_tokens = 0;  // of the completion's
    int64_t cached_tokens = 0;
    PromptInCache in_cache;
    std::optional<Finish::Kv> kv;  // set when the engine ends the sequence
  };

  explicit Choice(Args args);

  // Begins the text with the prompt (echo). `prompt`: its text; `ids`: its tokens.
  void begin_with(const std::string& prompt, std::span<const int32_t> ids);

  // Shows the log probabilities of the prompt `ids`, which come with the first events.
  void expect_prompt_logprobs(std::span<const int32_t> ids);

  // Shows the prompt's ids.
  void show_prompt_ids(std::span<const int32_t> ids);

  static constexpr std::size_t kAllTokens = std::numeric_limits<std::size_t>::max();

  // Processes the events since the last call, with `max_tokens` tokens at most. Calls `print` after
  // each token that produced text, and at the end of the text; not at a failure.
  // Returns: true if tokens are left.
  template <typename Print>
  bool advance(Print&& print, std::size_t max_tokens = kAllTokens) {
    TokenQueue::Events events = queue_->take(finished() ? kAllTokens : max_tokens);
    if (events.in_cache) {
      used.in_cache = *events.in_cache;
      used.cached_tokens = used.in_cache.cached_tokens;
    }
    if (events.finish) {
      used.kv = events.finish->kv;
      used.cached_tokens = events.finish->cached_tokens;
    }
    if (finished()) {  // a stop string ended it in an earlier call
      return false;
    }
    take_prompt(events.prompt);
    for (const TokenQueue::Token& token : events.tokens) {
      if (finished()) {  // a stop string ended it; the engine ran ahead
        break;
      }
      take_token(token);
      if (!finished() && text.any()) {
        print();
      }
    }
    if (events.cut_off && !finished()) {
      take_cut_off();
    }
    if (events.finish && !finished()) {
      take_finish(*events.finish);
    }
    if (!text.finish_reason.empty()) {
      print();
    }
    return events.more;
  }

  // Clears the text and tokens that were printed.
  void clear();

  // True if the engine has ended the sequence and reported its usage, or if the sequence failed.
  bool settled() const { return used.kv.has_value() || !failure.ok(); }
  bool finished() const { return !text.finish_reason.empty() || !failure.ok(); }
  // Returns: about how many bytes its next events are as JSON, with text that is not printed yet.
  std::size_t printed_bytes() const;

  // True if the echoed prompt or its log probabilities are not printed yet.
  bool holds_prompt() const {
    return text.first && (echo_ || shown_.prompt_logprobs || !text.prompt_ids.empty());
  }
  RequestId id() const { return generation_.id; }

  // Mean log probability of the generated tokens.
  double mean_logprob() const;

  ChoiceText text;         // not yet printed
  absl::Status failure;    // of a sequence that was cancelled or has failed
  bool cancelled = false;  // this server cancelled it, not for a limit of time
  Used used;

 private:
  // What the client has asked to see.
  struct Shown {
    bool logprobs = false;
    bool echo_logprobs = false;
    bool prompt_logprobs = false;  // reported separately
    bool ids_as_text = false;
    bool special = false;  // special tokens
    bool reasoning = false;
    bool token_ids = false;
  };

  void take_prompt(std::span<const TokenQueue::Token> tokens);
  void take_token(const TokenQueue::Token& token);
  void take_finish(const Finish& finish);
  void take_cut_off();
  void read(const std::string& piece, bool end);
  void expect_prompt_logprobs(std::span<const int32_t> ids, std::string_view prompt);
  ChosenToken chosen(const TokenQueue::Token& token) const;
  TokenText text_of(const TokenLogprob& token) const;

  Service& service_;
  const Shown shown_;
  const AnswerEnd end_;
  Generation generation_;
  std::optional<AnswerReader> reader_;  // of a chat
  std::shared_ptr<TokenQueue> queue_;
  bool echo_ = false;
  std::vector<ChosenToken> prompt_;  // prompt tokens until all log probabilities are there
  std::size_t prompt_known_ = 1;     // complete entries of prompt_; the first has no value
  int64_t characters_ = 0;           // of the text, including an echoed prompt
  double logprob_sum_ = 0;
};

}  // namespace tessera
