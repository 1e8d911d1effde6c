#include "server/routes/completion_answer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/generation/answer.h"
#include "server/routes/replies.h"

namespace tessera {

namespace {

// A piece larger than this is sent before more events are printed.
constexpr std::size_t kPieceBytes = 64 << 10;
constexpr std::size_t kTokensAtOnce = 64;

// Prints an answer as an HTTP body: whole, or as server-sent events.
class CompletionAnswer final : public HttpAnswer {
 public:
  CompletionAnswer(std::unique_ptr<Answer> answer, std::unique_ptr<AnswerPrinter> printer,
                   bool stream)
      : answer_(std::move(answer)), printer_(std::move(printer)), stream_(stream) {}

  // Work that grows goes to the work pool: submission after a grammar is compiled, a whole answer.
  std::size_t start_bytes() const override {
    if (answer_->waiting_bytes() > 0) {
      return answer_->waiting_bytes();
    }
    return stream_ ? held_bytes() : printed_bytes();
  }

  // Also the first piece, if it repeats the prompt, and a piece that repeats the stream's text.
  std::size_t more_bytes() const override {
    if (answer_->waiting_bytes() > 0) {
      return answer_->waiting_bytes();
    }
    const bool prompts = std::ranges::any_of(answer_->choices(), &Choice::holds_prompt);
    return prompts ? printed_bytes() : held_bytes();
  }

  void ping() override { ping_ = stream_; }

  std::optional<HttpReply> start() override {
    if (const absl::Status status = answer_->resume(); !status.ok()) {
      return refusal(status);
    }
    if (answer_->waiting_bytes() > 0) {
      return ping_ ? std::optional(stream_head(take_ping())) : std::nullopt;
    }
    return stream_ ? begin_stream() : whole_answer();
  }

  bool more(std::string& piece) override {
    if (const absl::Status status = answer_->resume(); !status.ok()) {
      piece += printer_->failure(status);
      return false;
    }
    if (answer_->waiting_bytes() > 0) {
      piece += take_ping();
      return true;
    }
    if (!std::exchange(begun_, true)) {
      piece += printer_->begin(answer_->usage());
    }
    for (Choice& choice : answer_->choices()) {
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
    if (!std::ranges::all_of(answer_->choices(),
                             [this](const Choice& choice) { return done(choice); })) {
      piece += piece.empty() ? take_ping() : "";
      return true;
    }
    piece += printer_->end(answer_->usage());
    return false;
  }

 private:
  // Returns: the head of a stream, with the events of the first tokens. Nothing before the engine
  // sends something, so that a request that only waited is answered by its error's status. A ping
  // comes before that, and then an error is an event.
  std::optional<HttpReply> begin_stream() {
    std::string events;
    bool any = false;
    for (Choice& choice : answer_->choices()) {
      if (events.size() >= kPieceBytes) {
        break;
      }
      choice.advance(
          [&] {
            events += events.empty() ? printer_->begin(answer_->usage()) : "";
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
    events = events.empty() ? printer_->begin(answer_->usage()) : std::move(events);
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
    for (Choice& choice : answer_->choices()) {
      choice.advance([] {});
      if (!choice.failure.ok()) {
        return refusal(choice.failure);
      }
      all = all && choice.settled();
    }
    if (!all) {
      return std::nullopt;
    }
    HttpReply reply;
    reply.body = printer_->whole(answer_->take_texts(), answer_->usage());
    return reply;
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
    for (const Choice& choice : answer_->choices()) {
      bytes += choice.printed_bytes();
    }
    return bytes;
  }

  // Usage has the engine's final numbers. So a choice that a stop string has ended is done only
  // when the engine has ended it too.
  bool done(const Choice& choice) const {
    return printer_->shows_usage() ? choice.settled() : choice.finished();
  }

  // Prints the new text and tokens of a choice as one event.
  void print(Choice& choice, std::string& piece) {
    piece += printer_->part(choice.text, answer_->usage());
    choice.clear();
  }

  const std::unique_ptr<Answer> answer_;
  const std::unique_ptr<AnswerPrinter> printer_;
  const bool stream_;
  bool begun_ = false;  // a stream
  bool ping_ = false;   // is due
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpAnswer>> answer_completion(
    Service& service, CompletionRequest request, std::unique_ptr<AnswerPrinter> printer,
    std::shared_ptr<Waker> waker) {
  const bool stream = request.stream;
  request.each.streamed = stream && !printer->holds_text();
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Answer> answer,
                           Answer::begin(service, std::move(request), std::move(waker)));
  return std::make_unique<CompletionAnswer>(std::move(answer), std::move(printer), stream);
}

}  // namespace tessera
