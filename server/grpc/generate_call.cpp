#include "server/grpc/generate_call.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/retry_after.h"
#include "models/status_macros.h"
#include "server/grpc/authorization.h"
#include "server/grpc/kv_options.h"
#include "server/seconds.h"

namespace tessera {
namespace {

// Maximum tokens in one message, because clients limit its size. With log probabilities each is
// some KiB.
constexpr std::size_t kMessageTokens = 256;

// Returns: the call's deadline on the engine's clock; none if it is more than a year away.
std::optional<std::chrono::steady_clock::time_point> deadline_of(
    const grpc::ServerContextBase& context) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24 * 365)) {
    return std::nullopt;
  }
  return std::chrono::steady_clock::now() + left;
}

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

// Returns: the queue timeout in the call's metadata; none without.
absl::StatusOr<std::optional<std::chrono::milliseconds>> queue_timeout_of(
    const grpc::ServerContextBase& context) {
  const std::string_view text = metadata_of(context, "x-queue-timeout");
  if (text.empty()) {
    return std::nullopt;
  }
  const std::optional<std::chrono::milliseconds> time = parse_seconds(text);
  if (!time.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metadata x-queue-timeout: must be a number of seconds above 0, at most ", kMostSeconds));
  }
  return time;
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
  void on_finish(const tessera::Finish& how) override { call.end(*this, how); }

  GenerateCall& call;
  const int32_t index;
  SeenToken coming;  // engine thread only

  // Only the owner of the writing side uses these.
  std::optional<Generation> generation;
  std::vector<SeenToken> taken_prompt;
  std::vector<SeenToken> taken;
  std::optional<tessera::Finish> taken_finish;

  // Guarded by the call's mutex.
  std::deque<SeenToken> prompt;
  std::deque<SeenToken> pending;
  std::optional<tessera::Finish> finish;
};

std::shared_ptr<GenerateCall> GenerateCall::make(const Shared& shared,
                                                 grpc::ServerContextBase& context,
                                                 std::shared_ptr<const Caller> caller) {
  auto call = std::make_shared<GenerateCall>(shared, context);
  call->record_->set_caller(*caller);
  call->caller_ = std::move(caller);
  call->self_ = call;
  call->record_->id = request_id_of(metadata_of(context, "x-request-id"));
  call->record_->method = "gRPC";
  call->record_->path = "/tessera.v1.Inference/Generate";
  context.AddInitialMetadata("x-request-id", call->record_->id);
  return call;
}

void GenerateCall::start(const v1::GenerateRequest& request) {
  if (const absl::Status status = begin(request); !status.ok()) {
    finish_early(status);
  }
}

GenerateCall* GenerateCall::refuse(const Shared& shared, grpc::ServerContextBase& context,
                                   const absl::Status& status) {
  const std::shared_ptr<GenerateCall> call =
      make(shared, context, std::make_shared<const Caller>());
  call->finish_early(status);
  return call.get();
}

GenerateCall::GenerateCall(const Shared& shared, grpc::ServerContextBase& context)
    : shared_(shared), context_(context), pending_room_(shared.service.budget()) {
  shared_.calls.open();
}
GenerateCall::~GenerateCall() = default;

absl::Status GenerateCall::begin(const v1::GenerateRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(GenerateCallRequest parsed, parse_generate_request(request));
  TESSERA_ASSIGN_OR_RETURN(
      name_, shared_.calls.add(caller_->tenant_id, request.request_id(), weak_from_this()));
  parsed.generate.deadline = deadline_of(context_);
  TESSERA_ASSIGN_OR_RETURN(parsed.generate.queue_timeout, queue_timeout_of(context_));
  parsed.generate.caller = caller_;
  parsed.generate.record = record_;
  parsed.generate.streamed = true;
  if (parsed.generate.grammar) {
    compile(std::move(parsed));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(submit(std::move(parsed)));
  write_pending();
  return absl::OkStatus();
}

// Submits the request when its grammar is compiled, on this thread or on one that compiles. Until
// then the writing side is the caller's.
void GenerateCall::compile(GenerateCallRequest parsed) {
  const GrammarSpec spec = *parsed.generate.grammar;
  shared_.service.compile(spec, [call = shared_from_this(), parsed = std::move(parsed)](
                                    absl::StatusOr<GrammarStore::Grammar> grammar) mutable {
    absl::Status status = grammar.status();
    if (status.ok()) {
      parsed.generate.compiled_grammar = *std::move(grammar);
      status = call->submit(std::move(parsed));
    }
    status.ok() ? call->write_pending() : call->finish_early(status);
  });
}

absl::Status GenerateCall::submit(GenerateCallRequest parsed) {
  const bool shows_prompt = parsed.generate.sampling.prompt_logprobs.has_value();
  std::vector<std::shared_ptr<EventSink>> sinks;
  for (int32_t i = 0; i < parsed.n; ++i) {
    sequences_.push_back(std::make_unique<Sequence>(*this, i));
    sinks.emplace_back(shared_from_this(), sequences_.back().get());
  }
  TESSERA_ASSIGN_OR_RETURN(Accepted accepted,
                           shared_.service.generate(std::move(parsed.generate), std::move(sinks)));
  room_ = std::move(accepted.room);
  std::unique_lock lock(mutex_);
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = *sequences_[i];
    ids_.push_back(accepted.generations[i].id);
    sequence.generation.emplace(std::move(accepted.generations[i]));
    if (shows_prompt) {
      sequence.prompt.insert(sequence.prompt.begin(), {.token = accepted.prompt.front()});
    }
  }
  if (cancelled_) {
    cancel(std::move(lock));
  }
  return absl::OkStatus();
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

void GenerateCall::end(Sequence& sequence, const tessera::Finish& finish) {
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

// A sequence with new events, or the reason why the stream ends early. Neither: there are no new
// events, and the writing side has no owner any more.
struct GenerateCall::Taken {
  Sequence* sequence = nullptr;
  absl::Status broken;
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
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = *sequences_[next_];
    next_ = (next_ + 1) % sequences_.size();
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

// Builds response_ from the taken tokens. Returns: false if it has no tokens, for example because
// the text has already ended at a stop string.
bool GenerateCall::read_tokens(Sequence& sequence) {
  const Tokenizer& tokenizer = shared_.service.tokenizer();
  TextStream& text = sequence.generation->text;
  response_.Clear();
  response_.set_request_id(name_);
  response_.set_index(sequence.index);
  for (const SeenToken& token : sequence.taken_prompt) {
    *response_.add_prompt() = to_wire(token, tokenizer);
  }
  for (const SeenToken& token : sequence.taken) {
    if (text.stopped()) {
      break;
    }
    response_.mutable_text()->append(text.push(token.token));
    response_.add_token_ids(token.token);
    if (token.logprob) {
      *response_.add_logprobs() = to_wire(token, tokenizer);
    }
    usage_.set_completion_tokens(usage_.completion_tokens() + 1);
  }
  return response_.token_ids_size() > 0 || response_.prompt_size() > 0;
}

// Returns: false if there was nothing to write. The caller then still owns the writing side.
bool GenerateCall::write(Sequence& sequence, bool any) {
  if (!sequence.taken_finish) {
    if (any) {
      StartWrite(&response_);
    }
    return any;
  }
  const tessera::Finish finish = *std::exchange(sequence.taken_finish, std::nullopt);
  if (!finish.status.ok()) {
    finish_early(finish.status);
    return true;
  }
  TextStream& text = sequence.generation->text;
  response_.mutable_text()->append(text.finish());
  response_.set_finish_reason(to_wire(text.stopped() ? FinishReason::stop : finish.reason));
  if (sequence.index == 0) {  // the prompt counts once
    usage_.set_prompt_tokens(finish.prompt_tokens);
    usage_.set_cached_tokens(finish.cached_tokens);
  }
  kv_.add(finish.kv);
  if (++ended_ < sequences_.size()) {
    StartWrite(&response_);
    return true;
  }
  *usage_.mutable_kv() = to_wire(kv_);
  *response_.mutable_usage() = usage_;
  shared_.calls.remove(caller_->tenant_id, name_);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  return true;
}

// Requires: the caller owns the writing side. Passes it on to the write that it starts, or releases
// it.
void GenerateCall::write_pending() {
  while (true) {
    const Taken taken = take();
    if (!taken.broken.ok()) {
      return finish_early(taken.broken);
    }
    if (taken.sequence == nullptr) {
      return;
    }
    Sequence& sequence = *taken.sequence;
    const bool was_stopped = sequence.generation->text.stopped();
    const bool any = read_tokens(sequence);
    if (!sequence.taken_finish && !was_stopped && sequence.generation->text.stopped()) {
      shared_.service.stop(*sequence.generation);
    }
    if (write(sequence, any)) {
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
  // gRPC's name for the time of a retry (proposal A6).
  if (const auto wait = retry_after_of(status)) {
    context_.AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(wait->count()));
  }
  Finish(to_grpc(status));
}

// A failed write means that the client has disconnected, which OnCancel reports too.
void GenerateCall::OnWriteDone(bool ok) {
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
  log_access(*record_, absl::StatusCodeToString(end_code_),
             end_code_ != absl::StatusCode::kCancelled);
  shared_.calls.close();
  self_.reset();
}

}  // namespace tessera
