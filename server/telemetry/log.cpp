#include "server/telemetry/log.h"

#include <fmt/format.h>
#include <spdlog/async.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/os.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/commit.h"
#include "server/telemetry/log_stream.h"
#include "server/telemetry/log_text.h"
#include "server/telemetry/repeat_filter.h"

namespace tessera {
namespace {

constexpr int kRepeats = 5;
constexpr std::chrono::seconds kRepeatWindow{10};
constexpr std::size_t kQueuedLines = 8192;  // of the access log

std::atomic<bool> json = false;
std::atomic<Spans> chosen_spans = Spans::off;

std::string_view view(const spdlog::string_view_t& text) {
  return {text.data(), text.size()};
}

// {"time":"...","level":"...","message":"..."}
class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(int32_t rank) : rank_(rank) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    nlohmann::ordered_json object = {
        {"time", log_time()},
        {"level", std::string(view(spdlog::level::to_string_view(message.level)))},
        {"message", std::string(view(message.payload))}};
    if (rank_ > 0) {
      object["rank"] = rank_;
    }
    const std::string line =
        object.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(rank_);
  }

 private:
  const int32_t rank_;
};

LogStream& log_stream() {
  static LogStream stream(STDERR_FILENO);
  return stream;
}

// Writes lines to stderr, each at once, with the level in colour on a terminal.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogSink(LogStream& stream) : stream_(stream) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (const int64_t dropped = stream_.take_dropped(); dropped > 0) {
      const std::string text =
          fmt::format("{} lines of the log are lost: stderr was not read", dropped);
      write({spdlog::source_loc{}, message.logger_name, spdlog::level::warn, text});
    }
    write(message);
  }
  void flush_() override {}

 private:
  static constexpr std::string_view kColours[] = {
      "", "\x1b[36m", "\x1b[32m", "\x1b[33m\x1b[1m", "\x1b[31m\x1b[1m", "\x1b[1m\x1b[41m", ""};

  void write(const spdlog::details::log_msg& message) {
    // JSON has escapes of its own.
    const std::string_view given = view(message.payload);
    const std::string text = json ? std::string(given) : escape_controls(given);
    spdlog::details::log_msg shown = message;
    shown.payload = text;
    spdlog::memory_buf_t line;
    formatter_->format(shown, line);
    if (!colours_ || shown.color_range_end <= shown.color_range_start) {
      return stream_.write({line.data(), line.size()});
    }
    std::string coloured(line.data(), line.size());
    coloured.insert(shown.color_range_end, "\x1b[m");
    coloured.insert(shown.color_range_start, kColours[shown.level]);
    stream_.write(coloured);
  }

  LogStream& stream_;
  const bool colours_ =
      spdlog::details::os::in_terminal(stderr) && spdlog::details::os::is_color_terminal();
};

// Writes lines to stderr, in a thread that has a queue of them.
class QueuedSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit QueuedSink(LogStream& stream) : stream_(stream) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    stream_.wait_for_reader();
    stream_.write({line.data(), line.size()});
  }
  void flush_() override {}

 private:
  LogStream& stream_;
};

constexpr char kTimeAndLevel[] = "%Y-%m-%dT%H:%M:%S.%e %^%l%$ ";

// Starts a logger whose lines wait in the queue of the access log.
void start_queued(const char* name, const std::string& pattern) {
  if (spdlog::thread_pool() == nullptr) {
    spdlog::init_thread_pool(kQueuedLines, 1);
  }
  const auto sink = std::make_shared<QueuedSink>(log_stream());
  sink->set_pattern(pattern);
  auto logger = std::make_shared<spdlog::async_logger>(
      name, sink, spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest);
  logger->set_level(spdlog::default_logger()->level());
  spdlog::register_logger(std::move(logger));
}

}  // namespace

void start_log(const LogOptions& options) {
  json = options.json;
  const auto terminal = std::make_shared<LogSink>(log_stream());
  auto filter = std::make_shared<RepeatFilter>(terminal, kRepeats, kRepeatWindow);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("tessera", std::move(filter)));
  const std::string who = options.rank == 0 ? "" : fmt::format("rank {}: ", options.rank);
  if (json) {
    spdlog::default_logger()->set_formatter(std::make_unique<JsonFormatter>(options.rank));
  } else {
    spdlog::default_logger()->set_pattern(kTimeAndLevel + who + "%v");
  }
  spdlog::default_logger()->set_level(spdlog::level::from_str(options.level));
  if (options.rank > 0) {
    return;
  }
  if (options.requests) {
    start_queued("access", json ? "%v" : std::string(kTimeAndLevel) + "%v");
  }
  if (options.spans != Spans::off) {
    chosen_spans = options.spans;
    start_queued("spans", "%v");
  }
  spdlog::info("tessera-server {} ({}): {}", TESSERA_VERSION, commit(), options.settings);
}

void end_log() {
  log_stream().hurry();
}

absl::Status set_log_level(std::string_view level) {
  const auto known = std::find(std::begin(kLogLevels), std::end(kLogLevels), level);
  if (known == std::end(kLogLevels)) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is none of trace, debug, info, warning, error, off", level));
  }
  spdlog::set_level(spdlog::level::from_str(std::string(level)));
  return absl::OkStatus();
}

std::shared_ptr<spdlog::logger> access_logger() {
  return spdlog::get("access");
}

std::shared_ptr<spdlog::logger> span_logger() {
  return spdlog::get("spans");
}

Spans logged_spans() {
  return chosen_spans;
}

bool logs_json() {
  return json;
}

std::string log_time() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
}

}  // namespace tessera
