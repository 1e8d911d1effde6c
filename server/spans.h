#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/access_log.h"

namespace tessera {

// Requests whose spans are logged: none, those that a client samples by its traceparent, or also
// those without a traceparent, which get a trace of their own.
enum class Spans : uint8_t { off, sampled, all };

bool has_spans(const RequestRecord& record, Spans spans);

// Returns: the spans of a request that has ended, as one line of OTLP in JSON (TracesData of
// opentelemetry-proto). The first covers the request. Within it are "queue", "prefill" and
// "decode", as far as the request got; of several samples: the first that was submitted, the
// longest queue and the first token. status, complete: see log_access(). now: the request's end.
std::string span_line(const RequestRecord& record, std::string_view status, bool complete,
                      std::chrono::system_clock::time_point now);

}  // namespace tessera
