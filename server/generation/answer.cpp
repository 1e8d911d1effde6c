#include "server/generation/answer.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/generation/prepare_request.h"
#include "server/request/request_bytes.h"
#include "text/detokenizer.h"

namespace tessera {

// A request whose adapter is being read, or its grammar compiled. Outlives its answer, because
// another thread may write the result then.
struct Answer::Waiting {
  Waiting(CompletionRequest some_request, ByteBudget::Share some_room)
      : request(std::move(some_request)),
        room(std::move(some_room)),
        bytes(prompt_bytes(request)) {}

  void set(absl::StatusOr<GrammarStore::Grammar> result) {
    const std::lock_guard lock(mutex);
    grammar = std::move(result);
  }
  bool ready() const {
    const std::lock_guard lock(mutex);
    return grammar.has_value();
  }

  CompletionRequest request;
  const ByteBudget::Share room;  // for its prompts
  const std::size_t bytes;
  mutable std::mutex mutex;  // guards the grammar
  std::optional<absl::StatusOr<GrammarStore::Grammar>> grammar;
};

absl::StatusOr<std::unique_ptr<Answer>> Answer::begin(Service& service, CompletionRequest request,
                                                      std::shared_ptr<Waker> waker) {
  std::unique_ptr<Answer> answer(new Answer(service, request, std::move(waker)));
  if (request.chat) {
    TESSERA_ASSIGN_OR_RETURN(answer->notation_, service.prepare_chat(request.tools, request.each));
  }
  TESSERA_RETURN_IF_ERROR(answer->wait_or_submit(std::move(request)));
  return answer;
}

Answer::Answer(Service& service, const CompletionRequest& request, std::shared_ptr<Waker> waker)
    : service_(service),
      waker_(std::move(waker)),
      n_(request.n),
      best_of_(std::max(request.n, request.best_of)) {}

Answer::~Answer() {
  for (const Choice& choice : choices_) {
    if (!choice.finished()) {
      service_.cancel(choice.id());
    }
  }
}

absl::Status Answer::wait_or_submit(CompletionRequest request) {
  if (!needs_preparing(service_, request.each)) {
    return submit(std::move(request));
  }
  TESSERA_ASSIGN_OR_RETURN(ByteBudget::Share room,
                           take_bytes(service_.budget(), prompt_bytes(request)));
  waiting_ = std::make_shared<Waiting>(std::move(request), std::move(room));
  prepare(service_, waiting_->request.each,
          [waiting = waiting_, waker = waker_](absl::StatusOr<GrammarStore::Grammar> grammar) {
            waiting->set(std::move(grammar));
            waker->wake();
          });
  return resume();
}

std::size_t Answer::waiting_bytes() const {
  return waiting_ == nullptr ? 0 : waiting_->bytes;
}

bool Answer::ready() const {
  return waiting_ == nullptr || waiting_->ready();
}

absl::Status Answer::resume() {
  if (waiting_ == nullptr || !waiting_->ready()) {
    return absl::OkStatus();
  }
  const std::shared_ptr<Waiting> waited = std::exchange(waiting_, nullptr);
  TESSERA_ASSIGN_OR_RETURN(waited->request.each.compiled_grammar, *std::move(waited->grammar));
  return submit(std::move(waited->request));
}

absl::Status Answer::submit(CompletionRequest request) {
  choices_.reserve(request.prompts.size() * static_cast<std::size_t>(best_of_));
  for (Prompt& prompt : request.prompts) {
    TESSERA_RETURN_IF_ERROR(submit_prompt(request, std::move(prompt)));
    request.each.admitted = false;  // each further prompt counts as a request
  }
  return absl::OkStatus();
}

absl::Status Answer::submit_prompt(const CompletionRequest& request, Prompt prompt) {
  const bool token_by_token =
      request.stream || !request.each.stop.empty() || (notation_ && notation_->one_call);
  std::vector<std::shared_ptr<TokenQueue>> queues;
  for (int32_t i = 0; i < best_of_; ++i) {
    queues.push_back(std::make_shared<TokenQueue>(
        waker_, token_by_token,
        request.stream ? std::optional(StreamRoom(service_.budget())) : std::nullopt));
  }
  GenerateRequest each = request.each;
  // A prompt that is cut, or of ids, is echoed as the text of its tokens.
  const bool echo_text = request.each.echo && std::holds_alternative<std::string>(prompt) &&
                         !request.each.truncate_prompt;
  std::string echo = echo_text ? std::get<std::string>(prompt) : std::string();
  each.prompt = std::move(prompt);
  TESSERA_ASSIGN_OR_RETURN(Accepted accepted,
                           service_.generate(std::move(each), {queues.begin(), queues.end()}));
  prompt_tokens_ += static_cast<int64_t>(accepted.prompt.size());
  kept_.push_back(std::move(accepted.kept));
  bytes_ += accepted.room.bytes();
  rooms_.push_back(std::move(accepted.room));
  if (request.each.echo && !echo_text) {
    echo = Detokenizer::text_of(service_.tokenizer(), accepted.prompt,
                                {.keep_special = request.each.keep_special});
  }
  add_choices(request, std::move(accepted), echo, queues);
  if (bytes_ > service_.max_answer_bytes()) {
    return invalid_field("prompt",
                         "the answers to all prompts may become too large together: "
                         "ask for fewer prompts, tokens or log probabilities");
  }
  return absl::OkStatus();
}

void Answer::add_choices(const CompletionRequest& request, Accepted accepted,
                         const std::string& echo, std::span<std::shared_ptr<TokenQueue>> queues) {
  if (notation_) {
    notation_->open_thought = accepted.open_thought;
  }
  for (std::size_t i = 0; i < queues.size(); ++i) {
    Choice& choice =
        choices_.emplace_back(Choice::Args{.service = service_,
                                           .request = request,
                                           .index = static_cast<int32_t>(choices_.size()),
                                           .notation = notation_,
                                           .generation = std::move(accepted.generations[i]),
                                           .queue = std::move(queues[i])});
    if (request.each.echo) {
      choice.begin_with(echo, accepted.prompt);
    }
    if (request.prompt_logprobs) {
      choice.expect_prompt_logprobs(accepted.prompt);
    }
    if (request.each.prompt_ids) {
      choice.show_prompt_ids(accepted.prompt);
    }
  }
}

std::vector<ChoiceText> Answer::take_texts() {
  std::vector<ChoiceText> texts;
  for (auto first = choices_.begin(); first != choices_.end(); first += best_of_) {
    std::vector<Choice*> order;
    std::transform(first, first + best_of_, std::back_inserter(order),
                   [](Choice& choice) { return &choice; });
    if (chooses()) {
      std::stable_sort(order.begin(), order.end(), [](const Choice* a, const Choice* b) {
        return a->mean_logprob() > b->mean_logprob();
      });
    }
    for (int32_t i = 0; i < n_; ++i) {
      ChoiceText& text = order[static_cast<std::size_t>(i)]->text;
      text.index = static_cast<int32_t>(texts.size());
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

Usage Answer::usage() const {
  Usage usage{.prompt_tokens = prompt_tokens_};
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    usage.completion_tokens += choice.used.completion_tokens;
    usage.reasoning_tokens += choice.used.reasoning_tokens;
    if (choice.used.kv.has_value()) {
      usage.kv.add(*choice.used.kv);
    }
    if (i % static_cast<std::size_t>(best_of_) == 0) {  // a prompt counts once
      usage.cached_tokens += choice.used.cached_tokens;
      const NewlyKept kept =
          newly_kept(kept_[i / static_cast<std::size_t>(best_of_)], choice.used.in_cache);
      usage.newly_kept.shortly += kept.shortly;
      usage.newly_kept.long_time += kept.long_time;
    }
  }
  return usage;
}

}  // namespace tessera
