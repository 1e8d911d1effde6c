#include "server/grpc/generate_call.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/generation/prepare_request.h"
#include "server/grpc/call_context.h"
#include "server/grpc/kv_options.h"
#include "server/request/model_sampling.h"
#include "text/detokenizer.h"

namespace tessera {
namespace {

// Maximum tokens in one message, because clients limit its size. With log probabilities each is
// some KiB.
constexpr std::size_t kMessageTokens = 256;

// Memory of a token that waits.
std::size_t bytes_of(const SeenToken& token) {
  constexpr std::size_t kAllocation = 16;
  return sizeof(token) + kAllocation + token.top.size() * sizeof(TokenLogprob);
}

// Moves the first tokens to `taken`, as many as one message may have.
void take_first(std::deque<SeenToken>& tokens, std::vector<SeenToken>& taken) {
  const auto end =
      tokens.begin() + static_cast<std::ptrdiff_t>(std::min(kMessageTokens, tokens.size()));
  taken.assign(std::make_move_iterator(tokens.begin()), std::make_move_iterator(end));
  tokens.erase(tokens.begin(), end);
}

}  // namespace

// One of the n sequences: the engine's sink, and its events that are not yet written.
struct GenerateCall::Sequence final : EventSink {
  Sequence(GenerateCall& some_call, int32_t some_index) : call(some_call), index(some_index) {}

  void on_prompt_logprobs(const TokenLogprobs& logprobs) override {
    call.add_prompt(*this, seen(logprobs));
  }
  void on_logprobs(const TokenLogprobs& logprobs) override { coming = seen(logprobs); }
  void on_token(int32_t token) override {
    coming.token = token;
    call.add(*this, std::exchange(coming, {}));
  }
  void on_finish(const tessera::Finish& how) override { call.add_end(*this, how); }

  GenerateCall& call;
  const int32_t index;
  SeenToken coming;  // engine thread only

  // Only the owner of the writing side uses these.
  std::optional<AnswerFields> answer;
  std::vector<SeenToken> taken_prompt;
  std::vector<SeenToken> taken;
  std::optional<tessera::Finish> taken_finish;
  std::vector<v1::GenerateResponse> held;  // with best_of

  // Guarded by the call's mutex.
  std::deque<SeenToken> prompt;
  std::deque<SeenToken> pending;
  std::optional<tessera::Finish> finish;
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
  if (const absl::Status status = read_request(); !status.ok()) {
    finish_early(status);
  }
}

GenerateCall::GenerateCall(const Shared& shared, grpc::ServerContextBase& context)
    : shared_(shared), context_(context), pending_room_(shared.service.budget()) {
  shared_.calls.open();
}
GenerateCall::~GenerateCall() = default;

absl::Status GenerateCall::read_request() {
  TESSERA_ASSIGN_OR_RETURN(GenerateCallRequest parsed, parse_generate_request(request_));
  TESSERA_RETURN_IF_ERROR(choose_model(shared_.service, parsed.model, parsed.generate));
  TESSERA_ASSIGN_OR_RETURN(
      name_, shared_.calls.add(caller_->tenant_id, request_.request_id(), weak_from_this()));
  fill_sampling(shared_.service.sampling(), parsed.generate);
  parsed.generate.deadline = deadline_of(context_);
  TESSERA_ASSIGN_OR_RETURN(parsed.generate.queue_timeout, queue_timeout_of(context_));
  parsed.generate.caller = caller_;
  parsed.generate.admitted = true;
  parsed.generate.record = record_;
  parsed.generate.streamed = parsed.best_of == parsed.n;
  if (parsed.tools) {
    TESSERA_ASSIGN_OR_RETURN(notation_,
                             shared_.service.prepare_chat(*parsed.tools, parsed.generate));
  }
  if (must_wait(shared_.service, parsed.generate)) {
    prepare_first(std::move(parsed));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(submit(std::move(parsed)));
  write_pending();
  return absl::OkStatus();
}

// Submits the request when its adapter is there and its grammar compiled, as a job of the work
// pool: its text is converted in its tenant's turn, and not on a thread that reads or compiles.
// Until then the writing side is the caller's.
void GenerateCall::prepare_first(GenerateCallRequest parsed) {
  const auto waiting = std::make_shared<GenerateCallRequest>(std::move(parsed));
  const auto begin = [call = shared_from_this(), waiting] {
    const absl::Status status = call->submit(std::move(*waiting));
    status.ok() ? call->write_pending() : call->finish_early(status);
  };
  const auto prepared = [call = shared_from_this(), waiting,
                         begin](absl::StatusOr<GrammarStore::Grammar> grammar) {
    if (!grammar.ok()) {
      return call->finish_early(grammar.status());
    }
    waiting->generate.compiled_grammar = *std::move(grammar);
    if (!call->shared_.work.pool.submit(call->caller_->turn_name(), call->request_room_.bytes(),
                                        begin)) {
      call->finish_early(absl::UnavailableError(kReadersBusy));
    }
  };
  prepare(shared_.service, waiting->generate, prepared);
}

absl::Status GenerateCall::submit(GenerateCallRequest parsed) {
  std::vector<std::shared_ptr<EventSink>> sinks;
  for (int32_t i = 0; i < parsed.best_of; ++i) {
    sequences_.push_back(std::make_unique<Sequence>(*this, i));
    sinks.emplace_back(shared_from_this(), sequences_.back().get());
  }
  best_ = parsed.best_of > parsed.n ? static_cast<std::size_t>(parsed.n) : 0;
  end_ = AnswerEnd(shared_.service, parsed.generate);
  const bool echo_ids = parsed.generate.echo &&
                        (std::holds_alternative<std::vector<int32_t>>(parsed.generate.prompt) ||
                         parsed.generate.truncate_prompt);
  const bool keep_special = parsed.generate.keep_special;
  std::string echo;
  if (parsed.generate.echo && !echo_ids) {
    echo = std::get<std::string>(parsed.generate.prompt);
  }
  TESSERA_ASSIGN_OR_RETURN(Accepted accepted,
                           shared_.service.generate(std::move(parsed.generate), std::move(sinks)));
  if (echo_ids) {
    echo = Detokenizer::text_of(shared_.service.tokenizer(), accepted.prompt,
                                {.keep_special = keep_special});
  }
  accept(parsed, std::move(accepted), std::move(echo));
  return absl::OkStatus();
}

void GenerateCall::accept(const GenerateCallRequest& parsed, Accepted accepted, std::string echo) {
  const auto text = std::make_shared<const std::string>(std::move(echo));
  room_ = std::move(accepted.room);
  if (notation_) {
    notation_->open_thought = accepted.open_thought;
  }
  std::unique_lock lock(mutex_);
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = *sequences_[i];
    ids_.push_back(accepted.generations[i].id);
    sequence.answer.emplace(AnswerFields::Args{.service = shared_.service,
                                               .generation = std::move(accepted.generations[i]),
                                               .notation = notation_,
                                               .reasoning = parsed.reasoning,
                                               .logprobs = parsed.logprobs,
                                               .end = end_,
                                               .echo = text});
    if (parsed.prompt_logprobs) {
      sequence.prompt.insert(sequence.prompt.begin(), {.token = accepted.prompt.front()});
    } else if (parsed.prompt_ids) {
      std::transform(accepted.prompt.begin(), accepted.prompt.end(),
                     std::back_inserter(sequence.prompt),
                     [](int32_t id) { return SeenToken{.token = id}; });
    }
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

// ---- engine thread

void GenerateCall::add_prompt(Sequence& sequence, SeenToken token) {
  std::unique_lock lock(mutex_);
  sequence.prompt.push_back(std::move(token));
  wake(std::move(lock));
}

void GenerateCall::add(Sequence& sequence, SeenToken token) {
  std::unique_lock lock(mutex_);
  if (gone_ || too_slow_) {
    return;
  }
  if (pending_tokens_ == shared_.max_pending_tokens || !pending_room_.add(bytes_of(token))) {
    too_slow_ = true;
    return cancel(std::move(lock));
  }
  ++pending_tokens_;
  sequence.pending.push_back(std::move(token));
  wake(std::move(lock));
}

void GenerateCall::add_end(Sequence& sequence, const tessera::Finish& finish) {
  std::unique_lock lock(mutex_);
  sequence.finish = finish;
  wake(std::move(lock));
}

// Requires: `lock` holds mutex_.
void GenerateCall::wake(std::unique_lock<std::mutex> lock) {
  if (!std::exchange(writing_, true)) {
    lock.unlock();
    shared_.writer.post(shared_from_this());
  }
}

// ---- writing side

// A sequence with new events, or the reason why the stream ends early, or that the next message
// stands in chosen_. None: there are no new events, and the writing side has no owner any more.
struct GenerateCall::Taken {
  Sequence* sequence = nullptr;
  absl::Status broken;
  bool chosen = false;
};

GenerateCall::Taken GenerateCall::take() {
  const std::lock_guard lock(mutex_);
  if (gone_) {
    return {.sequence = nullptr, .broken = absl::CancelledError("the client has gone")};
  }
  if (too_slow_) {
    return {.sequence = nullptr,
            .broken = absl::ResourceExhaustedError(absl::StrCat(
                "the client reads too slowly: ", pending_tokens_, " tokens wait for it"))};
  }
  if (!chosen_.empty()) {
    return {.sequence = nullptr, .broken = absl::OkStatus(), .chosen = true};
  }
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = *sequences_[next_];
    next_ = (next_ + 1) % sequences_.size();
    if (sequence.answer->has_echo()) {
      return {.sequence = &sequence, .broken = absl::OkStatus()};
    }
    take_from(sequence);
    if (!sequence.taken_prompt.empty() || !sequence.taken.empty() || sequence.taken_finish) {
      return {.sequence = &sequence, .broken = absl::OkStatus()};
    }
  }
  writing_ = false;
  return {};
}

// Moves pending events into the taken_ members. Requires: mutex_ is held.
void GenerateCall::take_from(Sequence& sequence) {
  take_first(sequence.prompt, sequence.taken_prompt);
  sequence.taken.clear();
  if (sequence.prompt.empty()) {
    take_first(sequence.pending, sequence.taken);
    pending_tokens_ -= sequence.taken.size();
    for (const SeenToken& token : sequence.taken) {
      pending_room_.remove(bytes_of(token));
    }
  }
  if (sequence.prompt.empty() && sequence.pending.empty()) {
    sequence.taken_finish = std::exchange(sequence.finish, std::nullopt);
  }
}

// Builds response_ from a part of the echo, or from the taken tokens. Returns: false if it has
// nothing, for example because the text has already ended at a stop string.
bool GenerateCall::read_tokens(Sequence& sequence) {
  AnswerFields& answer = *sequence.answer;
  response_.Clear();
  response_.set_request_id(name_);
  response_.set_index(sequence.index);
  if (answer.has_echo()) {
    answer.add_echo(response_);
    return true;
  }
  for (const SeenToken& token : std::exchange(sequence.taken_prompt, {})) {
    *response_.add_prompt() = to_wire(token, shared_.service.tokenizer());
  }
  for (const SeenToken& token : std::exchange(sequence.taken, {})) {
    answer.add(token, response_);
  }
  return response_.token_ids_size() > 0 || response_.prompt_size() > 0;
}

// Returns: false if there was nothing to write. The caller then still owns the writing side.
bool GenerateCall::write(Sequence& sequence, bool any) {
  const bool last = sequence.taken_finish.has_value();
  if (last) {
    if (const absl::Status status = end(sequence); !status.ok()) {
      finish_early(status);
      return true;
    }
  } else if (!any) {
    return false;
  }
  const bool all = ended_ == sequences_.size();
  if (best_ == 0) {
    send(all);
    return true;
  }
  sequence.held.push_back(std::move(response_));
  if (all) {
    choose_best();
  }
  return false;
}

// Adds the end of a sequence to response_, and to the usage.
// Errors: those of the engine.
absl::Status GenerateCall::end(Sequence& sequence) {
  const tessera::Finish finish = *std::exchange(sequence.taken_finish, std::nullopt);
  TESSERA_RETURN_IF_ERROR(finish.status);
  sequence.answer->finish(finish, response_);
  if (sequence.index == 0) {  // the prompt counts once
    usage_.set_prompt_tokens(finish.prompt_tokens);
    usage_.set_cached_tokens(finish.cached_tokens);
  }
  usage_.set_completion_tokens(usage_.completion_tokens() + sequence.answer->tokens());
  kv_.add(finish.kv);
  ++ended_;
  return absl::OkStatus();
}

// Moves the messages of the most likely sequences to chosen_.
void GenerateCall::choose_best() {
  std::vector<Sequence*> order;
  std::transform(sequences_.begin(), sequences_.end(), std::back_inserter(order),
                 [](const std::unique_ptr<Sequence>& sequence) { return sequence.get(); });
  std::stable_sort(order.begin(), order.end(), [](const Sequence* a, const Sequence* b) {
    return a->answer->mean_logprob() > b->answer->mean_logprob();
  });
  for (std::size_t i = 0; i < best_; ++i) {
    for (v1::GenerateResponse& message : order[i]->held) {
      message.set_index(static_cast<int32_t>(i));
      chosen_.push_back(std::move(message));
    }
  }
}

// Sends response_. `last`: it is the stream's last.
void GenerateCall::send(bool last) {
  if (!last) {
    shared_.unread.begin(context_, response_.ByteSizeLong());
    StartWrite(&response_);
    return;
  }
  *usage_.mutable_kv() = to_wire(kv_);
  *response_.mutable_usage() = usage_;
  shared_.calls.remove(caller_->tenant_id, name_);
  shared_.unread.begin(context_, response_.ByteSizeLong());
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

// Requires: the caller owns the writing side. Passes it on to the write that it starts, or releases
// it.
void GenerateCall::write_pending() {
  while (true) {
    const Taken taken = take();
    if (!taken.broken.ok()) {
      return finish_early(taken.broken);
    }
    if (taken.chosen) {
      response_ = std::move(chosen_.front());
      chosen_.pop_front();
      return send(chosen_.empty());
    }
    if (taken.sequence == nullptr || write(*taken.sequence, read_tokens(*taken.sequence))) {
      return;
    }
  }
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
  log_access(*record_, absl::StatusCodeToString(end_code_),
             end_code_ != absl::StatusCode::kCancelled);
  shared_.calls.close();
  self_.reset();
}

}  // namespace tessera
