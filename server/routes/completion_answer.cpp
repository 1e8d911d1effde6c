#include "server/routes/completion_answer.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/generation/choice.h"
#include "server/generation/prepare_request.h"
#include "server/openai/response.h"
#include "server/responses/response_store.h"
#include "server/routes/replies.h"
#include "text/detokenizer.h"

namespace tessera {

namespace {

// A piece larger than this is sent before more events are printed.
constexpr std::size_t kPieceBytes = 64 << 10;
constexpr std::size_t kTokensAtOnce = 64;

std::size_t bytes_of(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return text->size();
  }
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
    return ids->size() * sizeof(int32_t);
  }
  const Conversation& chat = std::get<Conversation>(prompt);
  std::size_t bytes = chat.variables.size() + message_bytes(chat.messages);
  for (const std::string& tool : chat.tools) {
    bytes += tool.size();
  }
  return bytes;
}

class CompletionAnswer final : public HttpAnswer {
 public:
  CompletionAnswer(Service& service, const CompletionRequest& request,
                   std::unique_ptr<AnswerPrinter> printer)
      : service_(service),
        printer_(std::move(printer)),
        stream_(request.stream),
        n_(request.n),
        best_of_(std::max(request.n, request.best_of)) {}

  ~CompletionAnswer() override {
    for (const Choice& choice : choices_) {
      if (!choice.finished()) {
        service_.cancel(choice.id());
      }
    }
  }

  // Submission after a grammar is compiled is work that grows with the request, too.
  std::size_t start_bytes() const override {
    if (waiting_ != nullptr) {
      return waiting_->bytes;
    }
    return stream_ ? held_bytes() : printed_bytes();
  }

  // So is the first piece, if it repeats the prompt, and a piece that repeats the stream's text.
  std::size_t more_bytes() const override {
    const bool prompts = std::any_of(choices_.begin(), choices_.end(),
                                     [](const Choice& choice) { return choice.holds_prompt(); });
    return waiting_ != nullptr ? waiting_->bytes : prompts ? printed_bytes() : held_bytes();
  }

  void ping() override { ping_ = stream_; }

  // Submits the request, or waits for its adapter and its grammar first: start() then submits it.
  absl::Status begin(CompletionRequest request, std::shared_ptr<Waker> waker) {
    if (request.chat) {
      TESSERA_ASSIGN_OR_RETURN(notation_, service_.prepare_chat(request.tools, request.each));
    }
    if (!must_wait(service_, request.each)) {
      return submit(std::move(request), waker);
    }
    waiting_ = std::make_shared<Waiting>(std::move(request), waker);
    TESSERA_ASSIGN_OR_RETURN(waiting_->room, take_bytes(service_.budget(), waiting_->bytes));
    prepare(service_, waiting_->request.each,
            [waiting = waiting_](absl::StatusOr<GrammarStore::Grammar> grammar) {
              waiting->set(std::move(grammar));
            });
    return resume();
  }

  absl::Status submit(CompletionRequest request, const std::shared_ptr<Waker>& waker) {
    choices_.reserve(request.prompts.size() * static_cast<std::size_t>(best_of_));
    for (Prompt& prompt : request.prompts) {
      TESSERA_RETURN_IF_ERROR(submit_prompt(request, std::move(prompt), waker));
      request.each.admitted = false;  // each further prompt counts as a request
    }
    return absl::OkStatus();
  }

  std::optional<HttpReply> start() override {
    if (const absl::Status status = resume(); !status.ok()) {
      return refusal(status);
    }
    if (waiting_ != nullptr) {
      return ping_ ? std::optional(stream_head(take_ping())) : std::nullopt;
    }
    return stream_ ? begin_stream() : whole_answer();
  }

  bool more(std::string& piece) override {
    if (const absl::Status status = resume(); !status.ok()) {
      piece += printer_->failure(status);
      return false;
    }
    if (waiting_ != nullptr) {
      piece += take_ping();
      return true;
    }
    if (!std::exchange(begun_, true)) {
      piece += printer_->begin(usage());
    }
    for (Choice& choice : choices_) {
      bool left = !done(choice);
      while (left) {
        if (piece.size() >= kPieceBytes) {
          return true;
        }
        left = choice.advance([&] { print(choice, piece); }, kTokensAtOnce);
      }
      if (!choice.failure.ok()) {
        piece += printer_->failure(choice.failure);
        return false;
      }
    }
    if (!std::all_of(choices_.begin(), choices_.end(),
                     [this](const Choice& choice) { return done(choice); })) {
      piece += piece.empty() ? take_ping() : "";
      return true;
    }
    piece += printer_->end(usage());
    return false;
  }

 private:
  // Returns: the head of a stream, with the events of the first tokens. Nothing before the engine
  // sends something, so that a request that only waited is answered by its error's status. A ping
  // comes before that, and then an error is an event.
  std::optional<HttpReply> begin_stream() {
    std::string events;
    bool any = false;
    for (Choice& choice : choices_) {
      if (events.size() >= kPieceBytes) {
        break;
      }
      choice.advance(
          [&] {
            events += events.empty() ? printer_->begin(usage()) : "";
            print(choice, events);
          },
          kTokensAtOnce);
      if (!choice.failure.ok() && events.empty()) {
        return refusal(choice.failure);
      }
      any = any || done(choice);
    }
    const bool silent = !any && events.empty();
    if (silent && !ping_) {
      return std::nullopt;
    }
    begun_ = true;
    events = events.empty() ? printer_->begin(usage()) : std::move(events);
    events += silent ? take_ping() : "";
    return stream_head(std::move(events));
  }

  static HttpReply stream_head(std::string events) {
    HttpReply reply;
    reply.body = std::move(events);
    reply.content_type = "text/event-stream; charset=utf-8";
    reply.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    reply.streamed = true;
    return reply;
  }

  std::optional<HttpReply> whole_answer() {
    bool all = true;
    for (Choice& choice : choices_) {
      choice.advance([] {});
      if (!choice.failure.ok()) {
        return refusal(choice.failure);
      }
      all = all && choice.settled();
    }
    return all ? std::optional(whole()) : std::nullopt;
  }

  // A request whose adapter is being read, or its grammar compiled.
  struct Waiting {
    Waiting(CompletionRequest some_request, std::shared_ptr<Waker> some_waker)
        : request(std::move(some_request)), waker(std::move(some_waker)) {
      for (const Prompt& prompt : request.prompts) {
        bytes += bytes_of(prompt);
      }
      if (const auto& infill = request.each.prompt_options.infill) {
        bytes += infill->suffix.size() + infill->begin.size();
        for (const InfillFile& file : infill->files) {
          bytes += file.name.size() + file.text.size();
        }
      }
    }

    void set(absl::StatusOr<GrammarStore::Grammar> result) {
      {
        const std::lock_guard lock(mutex);
        grammar = std::move(result);
      }
      waker->wake();
    }

    CompletionRequest request;
    std::size_t bytes = 1;   // of the prompts
    ByteBudget::Share room;  // for them
    const std::shared_ptr<Waker> waker;
    std::mutex mutex;  // guards the grammar
    std::optional<absl::StatusOr<GrammarStore::Grammar>> grammar;
  };

  // Submits the request if its grammar is there by now.
  absl::Status resume() {
    if (waiting_ == nullptr) {
      return absl::OkStatus();
    }
    {
      const std::lock_guard lock(waiting_->mutex);
      if (!waiting_->grammar.has_value()) {
        return absl::OkStatus();
      }
    }
    const std::shared_ptr<Waiting> waited = std::exchange(waiting_, nullptr);
    TESSERA_RETURN_IF_ERROR(waited->grammar->status());
    waited->request.each.compiled_grammar = **waited->grammar;
    return submit(std::move(waited->request), waited->waker);
  }

  // Returns: a ping if one is due.
  std::string take_ping() { return std::exchange(ping_, false) ? printer_->ping() : ""; }

  HttpReply refusal(const absl::Status& status) const {
    HttpReply reply = error_reply(status);
    reply.body = printer_->error(status);
    return reply;
  }

  // 0 for a stream that repeats less than a piece.
  std::size_t held_bytes() const {
    const std::size_t bytes = printer_->held_bytes();
    return bytes < kPieceBytes ? 0 : bytes;
  }

  // At least 1.
  std::size_t printed_bytes() const {
    std::size_t bytes = 1;
    for (const Choice& choice : choices_) {
      bytes += choice.printed_bytes();
    }
    return bytes;
  }

  // Usage has the engine's final numbers. So a choice that a stop string has ended is done only
  // when the engine has ended it too.
  bool done(const Choice& choice) const {
    return printer_->shows_usage() ? choice.settled() : choice.finished();
  }

  absl::Status submit_prompt(const CompletionRequest& request, Prompt prompt,
                             const std::shared_ptr<Waker>& waker) {
    const bool token_by_token =
        request.stream || !request.each.stop.empty() || (notation_ && notation_->one_call);
    std::vector<std::shared_ptr<TokenQueue>> queues;
    for (int32_t i = 0; i < best_of_; ++i) {
      queues.push_back(std::make_shared<TokenQueue>(
          waker, token_by_token,
          request.stream ? std::optional(StreamRoom(service_.budget())) : std::nullopt));
    }
    GenerateRequest each = request.each;
    const bool echo_text = request.echo && std::holds_alternative<std::string>(prompt) &&
                           !request.each.truncate_prompt;
    std::string text = echo_text ? std::get<std::string>(prompt) : std::string();
    each.prompt = std::move(prompt);
    each.streamed = request.stream && !printer_->holds_text();
    each.echo = request.echo;
    TESSERA_ASSIGN_OR_RETURN(Accepted accepted,
                             service_.generate(std::move(each), {queues.begin(), queues.end()}));
    prompt_tokens_ += static_cast<int64_t>(accepted.prompt.size());
    kept_.push_back(std::move(accepted.kept));
    bytes_ += accepted.room.bytes();
    rooms_.push_back(std::move(accepted.room));
    if (bytes_ > service_.max_answer_bytes()) {
      return invalid_field("prompt",
                           "the answers to all prompts may become too large together: "
                           "ask for fewer prompts, tokens or log probabilities");
    }
    if (request.echo && !echo_text) {
      text = Detokenizer::text_of(service_.tokenizer(), accepted.prompt,
                                  {.keep_special = request.each.keep_special});
    }
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
      if (request.echo) {
        choice.begin_with(text, accepted.prompt);
      }
      if (request.prompt_logprobs) {
        choice.expect_prompt_logprobs(accepted.prompt);
      }
      if (request.token_ids) {
        choice.show_prompt_ids(accepted.prompt);
      }
    }
    return absl::OkStatus();
  }

  // Prints the new text and tokens of a choice as one event.
  void print(Choice& choice, std::string& piece) {
    piece += printer_->part(choice.text, usage());
    choice.clear();
  }

  // Returns: the complete answer. With best_of > n it has the n most likely sequences of each
  // prompt, most likely first. Otherwise it has all sequences.
  HttpReply whole() {
    std::vector<ChoiceText> texts;
    for (auto first = choices_.begin(); first != choices_.end(); first += best_of_) {
      std::vector<Choice*> order;
      std::transform(first, first + best_of_, std::back_inserter(order),
                     [](Choice& choice) { return &choice; });
      if (best_of_ > n_) {
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
    HttpReply reply;
    reply.body = printer_->whole(texts, usage());
    return reply;
  }

  Usage usage() const {
    Usage usage{.prompt_tokens = prompt_tokens_};
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      usage.completion_tokens += choices_[i].completion_tokens;
      usage.reasoning_tokens += choices_[i].reasoning_tokens;
      if (choices_[i].kv.has_value()) {
        usage.kv.add(*choices_[i].kv);
      }
      if (i % static_cast<std::size_t>(best_of_) == 0) {  // a prompt counts once
        usage.cached_tokens += choices_[i].cached_tokens;
        const NewlyKept kept =
            newly_kept(kept_[i / static_cast<std::size_t>(best_of_)], choices_[i].in_cache);
        usage.newly_kept.shortly += kept.shortly;
        usage.newly_kept.long_time += kept.long_time;
      }
    }
    return usage;
  }

  Service& service_;
  const std::unique_ptr<AnswerPrinter> printer_;
  const bool stream_;
  bool begun_ = false;  // a stream
  bool ping_ = false;   // is due
  const int32_t n_;
  const int32_t best_of_;                   // sequences of each prompt
  std::optional<AnswerNotation> notation_;  // of a chat
  int64_t prompt_tokens_ = 0;
  std::vector<std::vector<KeptPrefix>> kept_;  // of each prompt
  std::size_t bytes_ = 0;                      // of rooms_
  std::vector<ByteBudget::Share> rooms_;
  std::vector<Choice> choices_;
  std::shared_ptr<Waiting> waiting_;  // null: the request was submitted
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpAnswer>> answer_completion(
    Service& service, CompletionRequest request, std::unique_ptr<AnswerPrinter> printer,
    std::shared_ptr<Waker> waker) {
  auto answer = std::make_unique<CompletionAnswer>(service, request, std::move(printer));
  TESSERA_RETURN_IF_ERROR(answer->begin(std::move(request), std::move(waker)));
  return answer;
}

}  // namespace tessera
