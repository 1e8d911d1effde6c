#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/http/token_queue.h"
#include "server/openai/response.h"
#include "server/service.h"

namespace tessera {

// One sequence of an answer: takes in what the engine reports of it, token by token, and makes of
// it what JSON shows. On the connection's thread.
class Choice {
 public:
  struct Args {
    Service& service;
    const CompletionRequest& request;  // only for the constructor's call
    int32_t index = 0;
    Generation generation;
    std::shared_ptr<TokenQueue> queue;
  };

  explicit Choice(Args args);

  // The text begins with the prompt's: `prompt`, of these ids.
  void set_cached(const std::string& prompt, std::span<const int32_t> ids);

  // Its log probabilities are shown: those of `ids`, which come with the first events.
  void expect_prompt_logprobs(std::span<const int32_t> ids);

  // What came since the last call. Calls `print` after each token that made text, and at the end.
  template <typename Print>
  void advance(Print&& print) {
    TokenQueue::Events events = queue_->take();
    if (events.finish) {
      kv = events.finish->kv;
    }
    if (finished()) {  // by a stop string, and now by the engine
      return;
    }
    take_prompt(events.prompt);
    for (const TokenQueue::Token& token : events.tokens) {
      if (finished()) {  // by a stop string: the engine was ahead
        break;
      }
      take_token(token);
      if (!finished() && !text.text.empty()) {
        print();
      }
    }
    if (events.finish && !finished()) {
      take_finish(*events.finish);
    }
    if (!text.finish_reason.empty()) {
      print();
    }
  }

  // Forgets what a chunk has shown.
  void clear();

  // The engine has ended it too, and told what it used.
  bool settled() const { return kv.has_value() || !failure.ok(); }
  bool finished() const { return !text.finish_reason.empty() || !failure.ok(); }
  RequestId id() const { return generation_.id; }

  // How likely the model found its tokens, on average.
  double mean_logprob() const;

  ChoiceText text;  // not yet shown
  absl::Status failure;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  std::optional<Finish::Kv> kv;  // from the engine's end on

 private:
  void take_prompt(std::span<const TokenQueue::Token> tokens);
  void take_token(const TokenQueue::Token& token);
  void take_finish(const Finish& finish);
  ChosenToken chosen(const TokenQueue::Token& token, int64_t offset) const;
  TokenText text_of(const TokenLogprob& token) const;

  Service& service_;
  const bool logprobs_;
  const bool prompt_logprobs_;  // reported apart
  const bool ids_as_text_;
  const bool keep_special_;
  Generation generation_;
  std::shared_ptr<TokenQueue> queue_;
  bool echo_ = false;
  std::vector<ChosenToken> prompt_;  // waits for its log probabilities
  std::size_t prompt_known_ = 1;     // of prompt_; nothing is known of the first
  int64_t characters_ = 0;           // of the text, with the prompt if it is shown
  double logprob_sum_ = 0;
};

}  // namespace tessera
