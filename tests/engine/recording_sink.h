#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace tessera {

// Records the events of one sequence and checks the contract of EventSink. Thread-safe.
class RecordingSink : public EventSink {
 public:
  void on_logprobs(const TokenLogprobs& logprobs) override {
    const std::lock_guard lock(mutex_);
    chosen_logprobs_.push_back(logprobs.chosen);
    last_top_.assign(logprobs.top.begin(), logprobs.top.end());
  }

  void on_prompt_logprobs(const TokenLogprobs& logprobs) override {
    const std::lock_guard lock(mutex_);
    late_prompt_events_ += tokens_.empty() ? 0 : 1;
    prompt_logprobs_.push_back(logprobs.chosen);
  }

  void on_logits(int32_t position, std::span<const float> logits) override {
    const std::lock_guard lock(mutex_);
    events_after_finish_ += finish_.has_value() ? 1 : 0;
    logits_.push_back({position, tokens_.size(), {logits.begin(), logits.end()}});
  }

  void on_embedding(std::span<const float> embedding) override {
    const std::lock_guard lock(mutex_);
    late_prompt_events_ += tokens_.empty() ? 0 : 1;
    events_after_finish_ += finish_.has_value() ? 1 : 0;
    embeddings_.emplace_back(embedding.begin(), embedding.end());
  }

  void on_token(int32_t token) override {
    {
      const std::lock_guard lock(mutex_);
      events_after_finish_ += finish_.has_value() ? 1 : 0;
      tokens_.push_back(token);
    }
    if (after_token) {
      after_token(token);
    }
  }

  void on_finish(const Finish& finish) override {
    {
      const std::lock_guard lock(mutex_);
      events_after_finish_ += finish_.has_value() ? 1 : 0;
      finish_ = finish;
    }
    finished_.notify_all();
  }

  std::function<void(int32_t)> after_token;

  struct Logits {
    int32_t position = 0;
    size_t tokens_before = 0;  // on_token calls before this event
    std::vector<float> values;
  };

  Finish wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return finish_.has_value(); });
    return *finish_;
  }
  std::optional<Finish> finish() const {
    const std::lock_guard lock(mutex_);
    return finish_;
  }
  std::vector<int32_t> tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  std::vector<TokenLogprob> chosen_logprobs() const {
    const std::lock_guard lock(mutex_);
    return chosen_logprobs_;
  }
  std::vector<TokenLogprob> last_top() const {
    const std::lock_guard lock(mutex_);
    return last_top_;
  }
  std::vector<TokenLogprob> prompt_logprobs() const {
    const std::lock_guard lock(mutex_);
    return prompt_logprobs_;
  }
  std::vector<Logits> logits() const {
    const std::lock_guard lock(mutex_);
    return logits_;
  }
  std::vector<std::vector<float>> embeddings() const {
    const std::lock_guard lock(mutex_);
    return embeddings_;
  }
  int late_prompt_events() const {
    const std::lock_guard lock(mutex_);
    return late_prompt_events_;
  }
  int events_after_finish() const {
    const std::lock_guard lock(mutex_);
    return events_after_finish_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<int32_t> tokens_;
  std::vector<TokenLogprob> chosen_logprobs_;
  std::vector<TokenLogprob> last_top_;
  std::vector<TokenLogprob> prompt_logprobs_;
  std::vector<Logits> logits_;
  std::vector<std::vector<float>> embeddings_;
  std::optional<Finish> finish_;
  int late_prompt_events_ = 0;
  int events_after_finish_ = 0;
};

}  // namespace tessera
