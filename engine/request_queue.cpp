#include "engine/request_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "engine/retry_after.h"

namespace tessera {
namespace {

// A refused client waits at least this long before it tries again.
constexpr std::chrono::seconds kLeastRetry{1};

// Maximum number of messages in the channel. Every unfinished sequence may have entered and been
// cancelled since the last receive(), and cancellations of ended sequences may still be there.
size_t channel_capacity(int64_t max_inside) {
  return static_cast<size_t>(3 * max_inside) + 1;  // 1: a flush
}

}  // namespace

RequestQueue::RequestQueue(int32_t max_queue, int32_t max_sequences)
    : max_queue_(max_queue),
      max_sequences_(max_sequences),
      channel_(channel_capacity(int64_t{max_queue} + max_sequences)) {}

absl::Status RequestQueue::check_room(const Sequence& first, int64_t samples, const Tenant& tenant,
                                      Time now) const {
  const ExpectedWait::Duration wait = tenant.wait.behind(tenant.waiting(), now);
  const auto refusal = [&](const std::string& reason) {
    const auto least = std::max(wait, ExpectedWait::Duration(kLeastRetry));
    return with_retry_after(absl::ResourceExhaustedError(reason), least);
  };
  const int64_t free = max_queue_ - waiting();
  if (samples > free) {
    return refusal(
        absl::StrCat("the queue is full: ", waiting(), " requests wait, ", max_queue_, " at most"));
  }
  if (first.place().tenant().id != 0 && tenant.waiting() > 0 && tenant.waiting() + samples > free) {
    return refusal(absl::StrCat("the queue is full for this tenant: ", tenant.waiting(),
                                " of its requests wait, and ", free, " places are left for all"));
  }
  const auto latest = first.request().latest_start();
  // A request that is late already is accepted and ends with DeadlineExceeded.
  if (latest.has_value() && *latest > now && wait > *latest - now) {
    return refusal(absl::StrFormat(
        "the server is overloaded: a request now waits for %.1f s, and this one may for %.1f s",
        wait.count(), ExpectedWait::Duration(*latest - now).count()));
  }
  return absl::OkStatus();
}

absl::Status RequestQueue::push(Message request, Time now) {
  const auto& samples = request.samples;
  const std::lock_guard lock(mutex_);
  if (refusing_) {
    return absl::UnavailableError("the engine takes no more requests: it is shutting down");
  }
  Tenant& tenant = tenants_[samples.front()->place().tenant().id];
  if (const absl::Status room = check_room(*samples.front(), std::ssize(samples), tenant, now);
      !room.ok()) {
    return room;
  }
  // Requests that gave up waited for the same place, so their time counts.
  if (tenant.waiting() == 0 && !tenant.gave_up) {
    tenant.wait.begin(now);
  }
  tenant.unfinished += std::ssize(samples);
  unfinished_ += std::ssize(samples);
  for (const auto& sample : samples) {
    cancellable_.insert(sample->id());
  }
  TESSERA_CHECK(channel_.try_push(std::move(request)), "the channel holds all messages");
  return absl::OkStatus();
}

void RequestQueue::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (cancellable_.erase(id) > 0) {
    // The channel refuses only after close(), and then all sequences end anyway.
    (void)channel_.try_push({.cancelled = id});
  }
}

void RequestQueue::flush() {
  const std::lock_guard lock(mutex_);
  if (!flushing_) {
    flushing_ = channel_.try_push({});
  }
}

void RequestQueue::receive(std::vector<Message>& messages) {
  const std::lock_guard lock(mutex_);
  channel_.drain(messages);
  flushing_ = false;
}

void RequestQueue::refuse() {
  const std::lock_guard lock(mutex_);
  refusing_ = true;
}

void RequestQueue::close() {
  const std::lock_guard lock(mutex_);
  refusing_ = true;
  closed_ = true;
  channel_.close();
}

bool RequestQueue::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

bool RequestQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0;
}

void RequestQueue::set_running(Sequences unfinished) {
  const std::lock_guard lock(mutex_);
  running_ = 0;
  for (auto& [id, tenant] : tenants_) {
    tenant.running = 0;
  }
  for (const auto& sequence : unfinished) {
    const auto tenant = tenants_.find(sequence->place().tenant().id);
    if (sequence->state().running() != nullptr &&
        tenant != tenants_.end()) {  // none but on the leader
      ++tenant->second.running;
      ++running_;
    }
  }
  if (running_ < max_sequences_) {
    for (auto& [id, tenant] : tenants_) {
      tenant.gave_up = false;
    }
  }
}

void RequestQueue::note_admission(const Sequence& sequence, Time now) {
  const std::lock_guard lock(mutex_);
  const auto tenant = tenants_.find(sequence.place().tenant().id);
  if (tenant != tenants_.end()) {
    tenant->second.wait.admitted(now);
  }
}

void RequestQueue::remove(const Sequence& sequence) {
  const std::lock_guard lock(mutex_);
  cancellable_.erase(sequence.id());
  Tenant& tenant = tenants_.at(sequence.place().tenant().id);
  --tenant.unfinished;
  if (!sequence.place().time().has_value() && running_ >= max_sequences_) {
    tenant.gave_up = true;
  }
  --unfinished_;
  TESSERA_CHECK(unfinished_ >= 0, "more sequences left than entered");
}

}  // namespace tessera
