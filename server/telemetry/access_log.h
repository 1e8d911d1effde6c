#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/tenants/caller.h"

namespace tessera {

// One request of a client, for the access log. A front end makes it, the service counts tokens on
// the engine thread, and the front end logs it at the end.
struct RequestRecord {
  std::string id;      // x-request-id
  std::string trace;   // traceparent; empty: none
  std::string method;  // "POST", or "gRPC"
  std::string path;
  std::string key;  // names of key and tenant; empty without
  std::string tenant;
  std::string warning;  // parts of the body that were left out or bind less; printable ASCII
  std::chrono::steady_clock::time_point received = std::chrono::steady_clock::now();
  std::atomic<int64_t> prompt_tokens = 0;
  std::atomic<int64_t> cached_tokens = 0;
  std::atomic<int64_t> completion_tokens = 0;
  std::atomic<int64_t> submitted_us = -1;    // from `received`; -1: it did not get so far
  std::atomic<int64_t> queue_us = -1;        // longest of its samples; -1: none began
  std::atomic<int64_t> first_token_us = -1;  // from `received`; -1: there was none

  void set_caller(const Caller& caller);
  // Adds to `warning`, cut to a size that fits into a header, other bytes than printable ASCII
  // replaced.
  void add_warning(std::string_view text);
  void note_submitted(std::chrono::steady_clock::time_point now);
  void note_first_token(std::chrono::steady_clock::time_point now);
};

// Returns: the client's id for its request if it can be used in headers and logs (1 to 128 visible
// ASCII characters), otherwise a new one.
std::string request_id_of(std::string_view given);

// Returns: the client's trace context (W3C's traceparent) if it has the form of version 00,
// otherwise an empty text.
std::string traceparent_of(std::string_view given);

// Logs the end of a request to the logger "access": one line of words, or one JSON object (see
// start_log). A client's texts are words of the line (log_text.h). Its spans go to the logger
// "spans" (spans.h). status: HTTP's number, or gRPC's name. complete: false if the client left
// before the end of its answer.
void log_access(const RequestRecord& record, std::string_view status, bool complete);

// The same line as text, and as JSON; for tests.
std::string access_line(const RequestRecord& record, std::string_view status, bool complete);
std::string access_json(const RequestRecord& record, std::string_view status, bool complete);

}  // namespace tessera
