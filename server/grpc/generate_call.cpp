#include "server/grpc/generate_call.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/generation/prepare_request.h"
#include "server/grpc/answer_messages.h"
#include "server/grpc/call_context.h"
#include "server/grpc/wire.h"
#include "server/request/model_sampling.h"

namespace tessera {
namespace {

// Tokens of one sequence that are read at once.
constexpr std::size_t kTokensAtOnce = 256;

}  // namespace

// Wakes a call as long as it exists.
class GenerateCall::WakeUp final : public Waker {
 public:
  explicit WakeUp(std::weak_ptr<GenerateCall> call) : call_(std::move(call)) {}
  void wake() override {
    if (const std::shared_ptr<GenerateCall> call = call_.lock()) {
      call->wake();
    }
  }

 private:
  const std::weak_ptr<GenerateCall> call_;
};

std::shared_ptr<GenerateCall> GenerateCall::make(const Shared& shared,
                                                 grpc::ServerContextBase& context,
                                                 std::shared_ptr<const Caller> caller,
                                                 OpenCalls::Place place) {
  auto call = std::make_shared<GenerateCall>(shared, context);
  begin_record(context, *caller, "/tessera.v1.Inference/Generate", *call->record_);
  call->caller_ = std::move(caller);
  call->place_ = std::move(place);
  call->self_ = call;
  return call;
}

GenerateCall* GenerateCall::begin(const Shared& shared, const CallLimits& limits,
                                  grpc::ServerContextBase& context,
                                  std::shared_ptr<const Caller> caller, OpenCalls::Place place) {
  const std::shared_ptr<GenerateCall> call =
      make(shared, context, std::move(caller), std::move(place));
  shared.unread.begin(context, limits.request_bytes);
  call->StartRead(&call->request_);
  return call.get();
}

GenerateCall* GenerateCall::refuse(const Shared& shared, grpc::ServerContextBase& context,
                                   std::shared_ptr<const Caller> caller, const absl::Status& status,
                                   OpenCalls::Place place) {
  const std::shared_ptr<GenerateCall> call =
      make(shared, context, std::move(caller), std::move(place));
  call->finish_early(status);
  return call.get();
}

// The call owns its writing side until start() returns.
void GenerateCall::OnReadDone(bool ok) {
  shared_.unread.end(context_);
  if (!ok) {
    return finish_early(context_.IsCancelled() ? absl::CancelledError("the client has gone")
                                               : no_message());
  }
  place_.keep();
  absl::StatusOr<ByteBudget::Share> room = room_for(shared_.work, request_);
  if (!room.ok()) {
    return finish_early(room.status());
  }
  request_room_ = *std::move(room);
  if (!shared_.work.pool.submit(caller_->turn_name(), request_room_.bytes(),
                                [call = shared_from_this()] { call->start(); })) {
    finish_early(absl::UnavailableError(kReadersBusy));
  }
}

void GenerateCall::start() {
  if (const absl::Status status = begin_answer(); !status.ok()) {
    return finish_early(status);
  }
  note_ids();
  write_pending();
}

GenerateCall::GenerateCall(const Shared& shared, grpc::ServerContextBase& context)
    : shared_(shared), context_(context) {
  shared_.calls.open();
}
GenerateCall::~GenerateCall() = default;

absl::Status GenerateCall::begin_answer() {
  TESSERA_ASSIGN_OR_RETURN(CompletionRequest parsed, parse_generate_request(request_));
  GenerateRequest& each = parsed.each;
  TESSERA_RETURN_IF_ERROR(choose_model(shared_.service, parsed.model, each));
  TESSERA_ASSIGN_OR_RETURN(
      name_, shared_.calls.add(caller_->tenant_id, request_.request_id(), weak_from_this()));
  fill_sampling(shared_.service.sampling(), each);
  each.deadline = deadline_of(context_);
  TESSERA_ASSIGN_OR_RETURN(each.queue_timeout, queue_timeout_of(context_));
  each.caller = caller_;
  each.admitted = true;
  each.record = record_;
  TESSERA_ASSIGN_OR_RETURN(answer_, Answer::begin(shared_.service, std::move(parsed),
                                                  std::make_shared<WakeUp>(weak_from_this())));
  return absl::OkStatus();
}

// Submits a request that waited, as a job of the work pool: its text is converted in its tenant's
// turn, and not on a thread that writes. Until then the writing side is the job's.
void GenerateCall::resume() {
  const auto job = [call = shared_from_this()] {
    if (const absl::Status status = call->answer_->resume(); !status.ok()) {
      return call->finish_early(status);
    }
    call->note_ids();
    call->write_pending();
  };
  if (!shared_.work.pool.submit(caller_->turn_name(), request_room_.bytes(), job)) {
    finish_early(absl::UnavailableError(kReadersBusy));
  }
}

// Lets other threads cancel the sequences, and does it if they wanted to before.
void GenerateCall::note_ids() {
  std::unique_lock lock(mutex_);
  ids_.clear();
  for (const Choice& choice : answer_->choices()) {
    ids_.push_back(choice.id());
  }
  if (cancelled_) {
    cancel(std::move(lock));
  }
}

// Requires: `lock` holds mutex_.
void GenerateCall::cancel(std::unique_lock<std::mutex> lock) {
  cancelled_ = true;
  const std::vector<RequestId> ids = ids_;
  lock.unlock();
  for (const RequestId id : ids) {
    shared_.service.cancel(id);
  }
}

void GenerateCall::abort() {
  cancel(std::unique_lock(mutex_));
}

// Any thread: there are new events.
void GenerateCall::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    if (std::exchange(writing_, true)) {
      return;
    }
  }
  shared_.writer.post(shared_from_this());
}

// ---- writing side

// Requires: the caller owns the writing side. Passes it on to the write or the job that it starts,
// or releases it.
void GenerateCall::write_pending() {
  while (begin_round()) {
    if (!messages_.empty()) {
      return send();
    }
    if (answer_->waiting_bytes() == 0) {
      if (const absl::Status status = read_events(); !status.ok()) {
        return finish_early(status);
      }
    } else if (answer_->ready()) {
      return resume();
    }
    if (messages_.empty() && release()) {
      return;
    }
  }
  finish_early(absl::CancelledError("the client has gone"));
}

// Returns: false if the client has gone.
bool GenerateCall::begin_round() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  return !gone_;
}

// Gives the writing side up. Returns: false if there were events meanwhile.
bool GenerateCall::release() {
  const std::lock_guard lock(mutex_);
  writing_ = woken_;
  return !writing_;
}

// Makes the messages of the next sequence that has something new. Those of the best sequences are
// made at the end.
// Errors: of a sequence that has failed; the stream cannot report the others then.
absl::Status GenerateCall::read_events() {
  const std::span<Choice> choices = answer_->choices();
  printed_.resize(choices.size());
  for (std::size_t i = 0; i < choices.size() && messages_.empty(); ++i) {
    Choice& choice = choices[next_];
    while (choice.advance([] {}, kTokensAtOnce) && answer_->chooses()) {
    }
    if (!choice.failure.ok() && !choice.cancelled) {
      return choice.failure;
    }
    if (choice.cancelled) {
      choice.text.finish_reason = kCancelled;
    }
    if (!answer_->chooses()) {
      print(choice);
    }
    next_ = (next_ + 1) % choices.size();
  }
  if (!std::ranges::all_of(choices, &Choice::settled)) {
    return absl::OkStatus();
  }
  if (answer_->chooses()) {
    print_best();
  }
  complete_ = answer_->chooses() || std::ranges::count(printed_, false) == 0;
  if (complete_) {
    *messages_.back().mutable_usage() = to_wire(answer_->usage());
  }
  return absl::OkStatus();
}

// The last message of a sequence waits for the engine's figures.
void GenerateCall::print(Choice& choice) {
  const std::size_t index = static_cast<std::size_t>(&choice - answer_->choices().data());
  const bool ends = choice.settled() && !printed_[index];
  if (printed_[index] || (choice.finished() && !ends) || (!ends && !shows_any(choice.text))) {
    return;
  }
  add_messages(choice.text, name_, shared_.service.tokenizer(), messages_);
  choice.clear();
  printed_[index] = ends;
}

void GenerateCall::print_best() {
  for (const ChoiceText& text : answer_->take_texts()) {
    add_messages(text, name_, shared_.service.tokenizer(), messages_);
  }
}

void GenerateCall::send() {
  response_ = std::move(messages_.front());
  messages_.pop_front();
  shared_.unread.begin(context_, response_.ByteSizeLong());
  if (!complete_ || !messages_.empty()) {
    return StartWrite(&response_);
  }
  shared_.calls.remove(caller_->tenant_id, name_);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

// Cancels the other sequences too, because the stream cannot report them any more.
void GenerateCall::finish_early(const absl::Status& status) {
  cancel(std::unique_lock(mutex_));
  if (!name_.empty()) {
    shared_.calls.remove(caller_->tenant_id, name_);
  }
  end_code_ = status.code();
  add_retry(context_, status);
  Finish(to_grpc(status));
}

// A failed write means that the client has disconnected, which OnCancel reports too.
void GenerateCall::OnWriteDone(bool ok) {
  shared_.unread.end(context_);
  if (!ok) {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  write_pending();
}

void GenerateCall::OnCancel() {
  std::unique_lock lock(mutex_);
  gone_ = true;
  const bool owner = !std::exchange(writing_, true);
  cancel(std::move(lock));
  if (owner) {
    write_pending();
  }
}

void GenerateCall::OnDone() {
  shared_.unread.end(context_);
  place_.release();
  request_room_.release();
  answer_.reset();  // the service is there until the call is closed
  log_access(*record_, absl::StatusCodeToString(end_code_),
             end_code_ != absl::StatusCode::kCancelled);
  shared_.calls.close();
  self_.reset();
}

}  // namespace tessera
