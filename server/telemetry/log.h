#pragma once

#include <spdlog/common.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/telemetry/spans.h"

namespace spdlog {
class logger;
namespace sinks {
class sink;
}
}  // namespace spdlog

namespace tessera {

struct LogOptions {
  bool json = false;
  std::string level;     // one of kLogLevels
  bool requests = true;  // the access log
  Spans spans = Spans::off;
  std::string settings;  // all of them, for the first line
  // Of this process, among the ranks that the model is split over. Only rank 0 logs the settings,
  // requests and spans.
  int32_t rank = 0;
};

// Sends the log to stderr, one line per event: time, level, text; or a JSON object with these.
// Lines that repeat, except for their numbers, are limited (repeat_filter.h). The first line holds
// the version and every setting.
//
// The access log has a queue of its own, which drops its oldest lines if stderr is too slow. Other
// lines wait for a moment, and are then lost (log_stream.h). So no request waits for the log, and
// no end of the server. Control characters are written as escapes (log_text.h).
void start_log(const LogOptions& options);

// Lines that stderr does not take at once are lost from now on, so that no reader delays the end of
// the process.
void end_log();

// Changes the least severity that is logged.
// Errors: InvalidArgument if `level` is none of those of --log-level.
absl::Status set_log_level(std::string_view level);

// Returns: the logger of requests; null without an access log.
std::shared_ptr<spdlog::logger> access_logger();
// Returns: the logger of spans, which shares the queue of the access log; null with --spans off.
std::shared_ptr<spdlog::logger> span_logger();
Spans logged_spans();
bool logs_json();
// Returns: the time as the log prints it.
std::string log_time();

}  // namespace tessera
