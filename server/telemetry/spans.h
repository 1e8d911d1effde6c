#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/telemetry/access_log.h"

namespace tessera {

// Selects the requests whose spans are logged. off: none. sampled: those whose traceparent has the
// flag "sampled". all: also those without a traceparent, each in a trace of its own.
enum class Spans : uint8_t { off, sampled, all };

bool has_spans(const RequestRecord& record, Spans spans);

// Returns: the spans of a request that has ended, as one line of OTLP in JSON (TracesData of
// opentelemetry-proto). The first covers the request. Within it are "queue", "prefill" and
// "decode", as far as the request got. A request of several samples has the times of the first
// submission, the longest queue and the first token.
// status, complete: see log_access(). now: the request's end.
std::string span_line(const RequestRecord& record, std::string_view status, bool complete,
                      std::chrono::system_clock::time_point now);

}  // namespace tessera
