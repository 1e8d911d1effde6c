#include "server/grpc/embed_call.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "server/generation/prepare_request.h"
#include "server/generation/served_model.h"
#include "server/grpc/call_context.h"
#include "server/grpc/embed_fields.h"
#include "server/grpc/wire.h"

namespace tessera {

EmbedCall* EmbedCall::begin(const Shared& shared, const CallLimits& limits,
                            grpc::CallbackServerContext& context,
                            std::shared_ptr<const Caller> caller, OpenCalls::Place place) {
  const auto call = std::make_shared<EmbedCall>(shared, context);
  begin_record(context, *caller, "/tessera.v1.Inference/Embed", *call->record_);
  call->caller_ = std::move(caller);
  call->place_ = std::move(place);
  call->self_ = call;
  shared.unread.begin(context, limits.request_bytes);
  call->StartRead(&call->request_);
  return call.get();
}

EmbedCall::EmbedCall(const Shared& shared, grpc::CallbackServerContext& context)
    : shared_(shared), context_(context) {
  shared_.calls.open();
}

void EmbedCall::OnReadDone(bool ok) {
  shared_.unread.end(context_);
  if (!ok) {
    return finish(context_.IsCancelled() ? absl::CancelledError("the client has gone")
                                         : no_message());
  }
  place_.keep();
  absl::StatusOr<ByteBudget::Share> room = room_for(shared_.work, request_);
  if (!room.ok()) {
    return finish(room.status());
  }
  request_room_ = *std::move(room);
  if (!shared_.work.pool.submit(caller_->turn_name(), request_room_.bytes(),
                                [call = shared_from_this()] { call->start(); })) {
    finish(absl::UnavailableError(kReadersBusy));
  }
}

void EmbedCall::start() {
  if (const absl::Status status = read_request(); !status.ok()) {
    return finish(status);
  }
  write_pending();  // inputs may have ended before the run was there
}

absl::Status EmbedCall::read_request() {
  TESSERA_ASSIGN_OR_RETURN(EmbeddingRequest request, parse_embed_request(request_));
  TESSERA_RETURN_IF_ERROR(choose_model(shared_.service, request.model, request.each));
  const int64_t values = request.dimensions.value_or(shared_.service.engine().config().hidden);
  const int64_t bytes =
      static_cast<int64_t>(request.inputs.size()) * (values * int64_t{sizeof(float)} + 16);
  if (std::cmp_greater(bytes, kMaxAnswerBytes)) {
    return absl::InvalidArgumentError(
        fmt::format("inputs: their embeddings have {} bytes, a message has at most {}: send fewer "
                    "inputs, or ask for fewer dimensions",
                    bytes, kMaxAnswerBytes));
  }
  model_ = answered_name(shared_.service, request.model);
  request.each.deadline = deadline_of(context_);
  TESSERA_ASSIGN_OR_RETURN(request.each.queue_timeout, queue_timeout_of(context_));
  request.each.caller = caller_;
  request.each.admitted = true;
  request.each.record = record_;
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<EmbeddingRun> run,
      EmbeddingRun::begin(shared_.service, std::move(request), [weak = weak_from_this()] {
        if (auto call = weak.lock()) {
          StreamWriter& writer = call->shared_.writer;
          writer.post(std::move(call));
        }
      }));
  const std::lock_guard lock(mutex_);
  run_ = std::move(run);
  return absl::OkStatus();
}

// Called by the thread that has started the call and by the writer's. The one that sees the end
// finishes the call.
void EmbedCall::write_pending() {
  absl::Status status;
  std::unique_ptr<EmbeddingRun> ended;  // its destructor cancels inputs that still run
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || run_ == nullptr) {
      return;
    }
    if (cancelled_) {
      status = absl::CancelledError("the client has cancelled the call");
    } else {
      const absl::StatusOr<bool> complete = run_->advance();
      if (complete.ok() && !*complete) {
        return;
      }
      status = complete.status();
      if (status.ok()) {
        fill_response(*run_);
      }
    }
    finished_ = true;
    ended = std::move(run_);
  }
  ended.reset();
  end(status);
}

void EmbedCall::fill_response(const EmbeddingRun& run) {
  for (std::size_t i = 0; i < run.size(); ++i) {
    const std::span<const float> values = run.embedding(i);
    response_.add_embeddings()->mutable_values()->Assign(values.begin(), values.end());
  }
  response_.set_model(model_);
  response_.set_prompt_tokens(run.prompt_tokens());
  response_.set_cached_tokens(run.cached_tokens());
}

void EmbedCall::finish(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  end(status);
}

void EmbedCall::end(const absl::Status& status) {
  end_code_ = status.code();
  add_retry(context_, status);
  if (!status.ok()) {
    return Finish(to_grpc(status));
  }
  shared_.unread.begin(context_, response_.ByteSizeLong());
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

void EmbedCall::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  shared_.writer.post(shared_from_this());
}

void EmbedCall::OnDone() {
  shared_.unread.end(context_);
  place_.release();
  request_room_.release();
  log_access(*record_, absl::StatusCodeToString(end_code_),
             end_code_ != absl::StatusCode::kCancelled);
  shared_.calls.close();
  self_.reset();
}

}  // namespace tessera
