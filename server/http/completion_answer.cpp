#include "server/http/completion_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <utility>
#include <vector>

#include "models/status_macros.h"
#include "server/http/token_queue.h"
#include "server/openai/error.h"
#include "server/openai/response.h"

namespace tessera {

namespace {

// A piece larger than this goes out before more is made.
constexpr std::size_t kPieceBytes = 64 << 10;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Different for every request of every process: ids, and seeds where the client gave none.
uint64_t unique_number() {
  static std::atomic<uint64_t> state = [] {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }();
  uint64_t z = state.fetch_add(0x9e3779b97f4a7c15);  // splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// One sequence and what is known of it.
struct Choice {
  Choice(int32_t some_index, Generation some_generation, std::shared_ptr<TokenQueue> some_queue)
      : generation(std::move(some_generation)), queue(std::move(some_queue)) {
    text.index = some_index;
    text.first = true;
  }

  bool finished() const { return !text.finish_reason.empty() || !failure.ok(); }

  Generation generation;
  std::shared_ptr<TokenQueue> queue;
  ChoiceText text;  // not yet sent
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t characters = 0;  // of the tokens' texts, sent
  absl::Status failure;
};

class CompletionAnswer final : public HttpAnswer {
 public:
  CompletionAnswer(Service& service, const CompletionRequest& request)
      : service_(service),
        stream_(request.stream),
        continuous_usage_(request.continuous_usage),
        choices_of_a_prompt_(request.n) {
    head_.chat = request.chat;
    head_.id = fmt::format("{}{:016x}", request.chat ? "chatcmpl-" : "cmpl-", unique_number());
    head_.created = unix_seconds();
    head_.model = service.model_name();
    head_.logprobs = request.logprobs();
    head_.usage = request.include_usage;
  }

  ~CompletionAnswer() override {
    for (const Choice& choice : choices_) {
      if (!choice.finished()) {
        service_.cancel(choice.generation.id);
      }
    }
  }

  absl::Status submit(CompletionRequest request, const std::shared_ptr<HttpWaker>& waker) {
    const bool token_by_token = request.stream || !request.each.stop.empty();
    const uint64_t seed = request.seed.value_or(unique_number());
    int32_t index = 0;
    choices_.reserve(request.prompts.size() * static_cast<std::size_t>(request.n));
    for (Prompt& prompt : request.prompts) {
      for (int32_t i = 0; i < request.n; ++i) {
        GenerateRequest each = request.each;
        each.prompt = i + 1 < request.n ? prompt : std::move(prompt);
        each.sampling.seed = seed + static_cast<uint64_t>(i);
        auto queue = std::make_shared<TokenQueue>(waker, token_by_token);
        TESSERA_ASSIGN_OR_RETURN(Generation generation, service_.generate(std::move(each), queue));
        if (i == 0) {
          prompt_tokens_ += generation.prompt_tokens;
        }
        choices_.emplace_back(index++, std::move(generation), std::move(queue));
      }
    }
    return absl::OkStatus();
  }

  std::optional<HttpReply> start() override {
    if (stream_) {
      HttpReply reply;
      reply.content_type = "text/event-stream; charset=utf-8";
      reply.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
      reply.streamed = true;
      return reply;
    }
    bool all = true;
    for (Choice& choice : choices_) {
      advance(choice);
      if (!choice.failure.ok()) {
        HttpReply reply;
        reply.status = http_status(choice.failure);
        reply.body = print_error(choice.failure);
        return reply;
      }
      all = all && choice.finished();
    }
    return all ? std::optional(whole()) : std::nullopt;
  }

  bool more(std::string& piece) override {
    for (Choice& choice : choices_) {
      if (piece.size() >= kPieceBytes) {
        return true;
      }
      if (!choice.finished()) {
        advance(choice, &piece);
      }
      if (!choice.failure.ok()) {
        piece += print_error_event(choice.failure);
        piece += kDoneEvent;
        return false;
      }
    }
    if (!std::all_of(choices_.begin(), choices_.end(),
                     [](const Choice& choice) { return choice.finished(); })) {
      return true;
    }
    if (head_.usage) {
      piece += print_usage_event(head_, usage());
    }
    piece += kDoneEvent;
    return false;
  }

 private:
  // Takes in what the engine has reported. With a `piece`, prints it there token by token.
  void advance(Choice& choice, std::string* piece = nullptr) {
    const TokenQueue::Events events = choice.queue->take();
    for (const TokenQueue::Token& token : events.tokens) {
      if (choice.finished()) {  // by a stop string: the engine was ahead
        break;
      }
      take_token(choice, token);
      if (piece != nullptr && !choice.finished() && !choice.text.text.empty()) {
        print(choice, *piece);
      }
    }
    if (events.finish && !choice.finished()) {
      take_finish(choice, *events.finish);
    }
    if (piece != nullptr && !choice.text.finish_reason.empty()) {
      print(choice, *piece);
    }
  }

  void take_token(Choice& choice, const TokenQueue::Token& token) {
    ++choice.completion_tokens;
    choice.text.text += choice.generation.text.push(token.id);
    if (head_.logprobs) {
      ChosenToken chosen{text_of({token.id, token.logprob}), {}};
      std::transform(token.top.begin(), token.top.end(), std::back_inserter(chosen.top),
                     [this](const TokenLogprob& other) { return text_of(other); });
      choice.text.tokens.push_back(std::move(chosen));
    }
    if (choice.generation.text.stopped()) {
      service_.stop(choice.generation);
      choice.text.finish_reason = "stop";
    }
  }

  TokenText text_of(const TokenLogprob& token) const {
    return {service_.tokenizer().token_bytes(token.token, /*keep_special=*/true), token.logprob};
  }

  void take_finish(Choice& choice, const Finish& finish) {
    choice.cached_tokens = finish.cached_tokens;
    choice.text.text += choice.generation.text.finish();
    switch (finish.reason) {
      case FinishReason::stop:
        choice.text.finish_reason = "stop";
        break;
      case FinishReason::length:
        choice.text.finish_reason = choice.generation.text.stopped() ? "stop" : "length";
        break;
      case FinishReason::cancelled:
        choice.failure =
            with_code(absl::UnavailableError("the server has cancelled this request"), "cancelled");
        break;
      case FinishReason::failed:
        choice.failure =
            finish.status.ok() ? absl::InternalError("the engine failed") : finish.status;
        break;
    }
  }

  // Prints what has come since the last time as one event.
  void print(Choice& choice, std::string& piece) {
    choice.text.text_offset = choice.characters;
    for (const ChosenToken& token : choice.text.tokens) {
      choice.characters += count_characters(token.token.bytes);
    }
    piece +=
        print_event(head_, choice.text, continuous_usage_ ? std::optional(usage()) : std::nullopt);
    choice.text.text.clear();
    choice.text.tokens.clear();
    choice.text.first = false;
  }

  HttpReply whole() const {
    std::vector<ChoiceText> texts;
    texts.reserve(choices_.size());
    for (const Choice& choice : choices_) {
      texts.push_back(choice.text);
    }
    HttpReply reply;
    reply.body = print_completion(head_, texts, usage());
    return reply;
  }

  Usage usage() const {
    Usage usage{.prompt_tokens = prompt_tokens_};
    for (const Choice& choice : choices_) {
      usage.completion_tokens += choice.completion_tokens;
      if (choice.text.index % choices_of_a_prompt_ == 0) {  // a prompt counts once
        usage.cached_tokens += choice.cached_tokens;
      }
    }
    return usage;
  }

  Service& service_;
  const bool stream_;
  const bool continuous_usage_;
  const int32_t choices_of_a_prompt_;
  CompletionHead head_;
  int64_t prompt_tokens_ = 0;
  std::vector<Choice> choices_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpAnswer>> answer_completion(Service& service,
                                                              CompletionRequest request,
                                                              std::shared_ptr<HttpWaker> waker) {
  auto answer = std::make_unique<CompletionAnswer>(service, request);
  TESSERA_RETURN_IF_ERROR(answer->submit(std::move(request), waker));
  return answer;
}

}  // namespace tessera
