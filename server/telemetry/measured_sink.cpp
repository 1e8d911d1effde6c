#include "server/telemetry/measured_sink.h"

#include <algorithm>
#include <optional>

#include "server/telemetry/access_log.h"
#include "server/telemetry/metrics.h"

namespace tessera {

void MeasuredSink::on_token(int32_t token) {
  const Clock::time_point now = Clock::now();
  if (first_) {
    first_token_ = now;
    args_.metrics.first_token(now - args_.received);
  } else {
    args_.metrics.next_token(now - previous_);
  }
  if (args_.record != nullptr) {
    ++args_.record->completion_tokens;
    args_.record->note_first_token(now);
  }
  first_ = false;
  previous_ = now;
  args_.sink->on_token(token);
}

void MeasuredSink::on_finish(const Finish& finish) {
  Finish counted = finish;
  if (counted.reason == FinishReason::cancelled && *stopped_by_text) {
    counted.reason = FinishReason::stop;
  }
  const Clock::time_point now = Clock::now();
  const auto since_first = first_ ? std::nullopt : std::optional(now - first_token_);
  args_.metrics.finished(counted, now - args_.received, since_first);
  args_.metrics.tenant_finished(args_.caller->tenant.name, counted);
  args_.caller->meter->charge(finish.completion_tokens);
  if (args_.record != nullptr) {
    record_finish(finish);
  }
  args_.sink->on_finish(finish);
}

// Only this thread writes these two numbers.
void MeasuredSink::record_finish(const Finish& finish) {
  RequestRecord& record = *args_.record;
  record.cached_tokens = std::max<int64_t>(record.cached_tokens, finish.cached_tokens);
  if (finish.queue_time.has_value()) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(*finish.queue_time);
    record.queue_us = std::max<int64_t>(record.queue_us, us.count());
  }
}

}  // namespace tessera
