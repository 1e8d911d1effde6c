#include "server/grpc/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "models/status_macros.h"
#include "server/grpc/wire.h"

namespace tessera {

GenerateCall* GenerateCall::start(const Shared& shared, const v1::GenerateRequest& request) {
  auto call = std::make_shared<GenerateCall>(shared);
  call->self_ = call;
  if (const absl::Status status = call->submit(request); !status.ok()) {
    call->finish_early(status);
  } else {
    call->write_pending();
  }
  return call.get();
}

GenerateCall::GenerateCall(const Shared& shared) : shared_(shared) {
  shared_.calls.open();
}

absl::Status GenerateCall::submit(const v1::GenerateRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(GenerateRequest parsed, parse_generate_request(request));
  TESSERA_ASSIGN_OR_RETURN(name_, shared_.calls.add(request.request_id(), weak_from_this()));
  TESSERA_ASSIGN_OR_RETURN(Generation generation,
                           shared_.service.generate(std::move(parsed), shared_from_this()));
  generation_.emplace(std::move(generation));
  std::unique_lock lock(mutex_);
  id_ = generation_->id;
  if (cancelled_) {
    cancel(std::move(lock));
  }
  return absl::OkStatus();
}

// Requires: `lock` holds mutex_.
void GenerateCall::cancel(std::unique_lock<std::mutex> lock) {
  cancelled_ = true;
  const std::optional<RequestId> id = id_;
  lock.unlock();
  if (id) {
    shared_.service.cancel(*id);
  }
}

void GenerateCall::abort() {
  cancel(std::unique_lock(mutex_));
}

void GenerateCall::on_token(int32_t token) {
  std::unique_lock lock(mutex_);
  if (gone_ || too_slow_) {
    return;
  }
  if (pending_.size() == shared_.max_pending_tokens) {
    too_slow_ = true;
    return cancel(std::move(lock));
  }
  pending_.push_back(token);
  if (!std::exchange(writing_, true)) {
    lock.unlock();
    shared_.writer.post(shared_from_this());
  }
}

void GenerateCall::on_finish(const tessera::Finish& finish) {
  std::unique_lock lock(mutex_);
  finish_ = finish;
  if (!std::exchange(writing_, true)) {
    lock.unlock();
    shared_.writer.post(shared_from_this());
  }
}

// Moves what has come into taken_ and `finish`. False: nothing has, and the writing side is free.
bool GenerateCall::take(std::optional<tessera::Finish>& finish) {
  const std::lock_guard lock(mutex_);
  taken_.clear();
  if (gone_) {
    finish = {.reason = FinishReason::failed,
              .status = absl::CancelledError("the client has gone")};
    return true;
  }
  if (finish_ && too_slow_) {
    finish = {.reason = FinishReason::failed,
              .status = absl::ResourceExhaustedError(absl::StrCat(
                  "the client reads too slowly: ", pending_.size(), " tokens wait for it"))};
    return true;
  }
  taken_.swap(pending_);
  finish = finish_;
  writing_ = finish || !taken_.empty();
  return writing_;
}

// Turns taken_ into response_. False: there is nothing to say, for the text is at its end.
bool GenerateCall::read_tokens() {
  TextStream& text = generation_->text;
  response_.Clear();
  response_.set_request_id(name_);
  for (const int32_t token : taken_) {
    if (text.stopped()) {
      break;
    }
    response_.mutable_text()->append(text.push(token));
    response_.add_token_ids(token);
    ++completion_tokens_;
  }
  return response_.token_ids_size() > 0;
}

// Requires: the caller owns the writing side. Passes it on to the write it begins, or frees it.
void GenerateCall::write_pending() {
  std::optional<tessera::Finish> finish;
  while (take(finish)) {
    const bool was_stopped = generation_->text.stopped();
    const bool any = read_tokens();
    if (finish) {
      return finish_with(*finish);
    }
    if (!was_stopped && generation_->text.stopped()) {
      shared_.service.stop(*generation_);
    }
    if (any) {
      return StartWrite(&response_);
    }
  }
}

void GenerateCall::finish_with(const tessera::Finish& finish) {
  if (finish.reason == FinishReason::failed) {
    return finish_early(finish.status);
  }
  TextStream& text = generation_->text;
  response_.mutable_text()->append(text.finish());
  response_.set_finish_reason(to_wire(text.stopped() ? FinishReason::stop : finish.reason));
  v1::Usage& usage = *response_.mutable_usage();
  usage.set_prompt_tokens(finish.prompt_tokens);
  usage.set_cached_tokens(finish.cached_tokens);
  usage.set_completion_tokens(completion_tokens_);
  shared_.calls.remove(name_);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

void GenerateCall::finish_early(const absl::Status& status) {
  if (!name_.empty()) {
    shared_.calls.remove(name_);
  }
  Finish(to_grpc(status));
}

// A write that failed means that the client has gone, which OnCancel reports too.
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
  shared_.calls.close();
  self_.reset();
}

}  // namespace tessera
