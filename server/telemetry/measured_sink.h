#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <utility>

#include "engine/engine.h"
#include "server/tenants/caller.h"

namespace tessera {

class Metrics;
struct RequestRecord;

// Records metrics of the events that the engine sends to a front end's sink, and counts tokens for
// the caller. Engine thread only.
class MeasuredSink final : public EventSink {
 public:
  using Clock = std::chrono::steady_clock;
  struct Args {
    std::shared_ptr<EventSink> sink;
    Metrics& metrics;
    Clock::time_point received;
    std::shared_ptr<const Caller> caller;
    std::shared_ptr<RequestRecord> record;  // may be null
  };
  explicit MeasuredSink(Args args) : args_(std::move(args)), previous_(args_.received) {}

  void on_prompt_in_cache(const PromptInCache& prompt) override {
    args_.sink->on_prompt_in_cache(prompt);
  }
  void on_prompt_logprobs(const TokenLogprobs& logprobs) override {
    args_.sink->on_prompt_logprobs(logprobs);
  }
  void on_logits(int32_t position, std::span<const float> logits) override {
    args_.sink->on_logits(position, logits);
  }
  void on_embedding(std::span<const float> embedding) override {
    args_.sink->on_embedding(embedding);
  }
  void on_logprobs(const TokenLogprobs& logprobs) override { args_.sink->on_logprobs(logprobs); }
  void on_token(int32_t token) override;
  void on_finish(const Finish& finish) override;

  const std::shared_ptr<std::atomic<bool>> stopped_by_text =
      std::make_shared<std::atomic<bool>>(false);

 private:
  void record_finish(const Finish& finish);

  const Args args_;
  Clock::time_point first_token_;
  Clock::time_point previous_;
  bool first_ = true;
};

}  // namespace tessera
