#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/pooling.h"
#include "engine/request.h"
#include "engine/sampler.h"

namespace tessera {

// Everything that a sequence tells its client, through its event sink. Logits, prompt log
// probabilities and the embedding go at once, while a step computes them. Tokens wait for the end
// of the step.
class SequenceOutbox {
 public:
  // most_tokens: of one step. hidden: values of a hidden state.
  SequenceOutbox(std::shared_ptr<EventSink> sink, const EngineRequest& request, size_t most_tokens,
                 int32_t hidden);

  // ---- at once. Positions count the sequence's tokens from 0. The logits after `position` predict
  // the token at position + 1.

  // Returns: true if the request asks for logits or prompt log probabilities after `position`, and
  // the event sink has not received them yet. The second function covers prompt log probabilities
  // only.
  bool observes(int32_t position) const;
  bool observes_prompt_logprobs(int32_t position) const;
  // Passes logits and prompt log probabilities on. logits: [vocab]. prompt_logprobs: of the token
  // at position + 1, if they are observed.
  void observe(int32_t position, std::span<const float> logits,
               const TokenLogprobs& prompt_logprobs);
  // Returns: true if the request's embedding needs the hidden state at `position`, and does not
  // have it yet.
  bool pools(int32_t position) const { return pool_.has_value() && pool_->wants(position); }
  // Adds the hidden state at `position`, [hidden]. The last one completes the embedding.
  void pool(int32_t position, std::span<const float> hidden);
  // Returns: the first position of which the sink has yet to receive something; the largest number
  // if there is none.
  int32_t first_unobserved() const;

  // ---- at the end of a step, in this order

  // Keeps a token until send().
  void add(const Sampled& next);
  bool has_tokens() const { return tokens_ > 0; }
  // Sends the tokens. Before the first ones it tells of the prompt.
  void send(const PromptInCache& prompt);
  void send_finish(const Finish& finish) { sink_->on_finish(finish); }

 private:
  struct Token {
    int32_t token = 0;
    TokenLogprob logprob;
    std::vector<TokenLogprob> top;
    int32_t rank = 0;
  };

  std::shared_ptr<EventSink> sink_;
  bool logits_;                // the request observes logits
  bool logprobs_;              // of its tokens
  int32_t prompt_logprobs_;    // tokens of the prompt whose log probabilities it observes; 0: none
  int32_t next_observed_ = 0;  // the sink has received the positions before it
  std::optional<HiddenPool> pool_;
  bool told_ = false;        // the sink has received PromptInCache
  std::vector<Token> room_;  // for the tokens of a step
  size_t tokens_ = 0;        // of these
};

}  // namespace tessera
