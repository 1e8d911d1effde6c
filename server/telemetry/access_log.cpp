#include "server/telemetry/access_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/base/header_text.h"
#include "server/base/unique_id.h"
#include "server/telemetry/log.h"
#include "server/telemetry/log_text.h"
#include "server/telemetry/spans.h"

namespace tessera {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;

double milliseconds(int64_t us) {
  return static_cast<double>(us) / 1000;
}

int64_t total_us(const RequestRecord& record) {
  return duration_cast<microseconds>(std::chrono::steady_clock::now() - record.received).count();
}

// Probes of balancers and of Prometheus would hide the rest.
bool is_probe(const RequestRecord& record) {
  return record.path == "/health" || record.path == "/metrics";
}

}  // namespace

void RequestRecord::add_warning(std::string_view text) {
  constexpr std::size_t kMost = 2000;  // bytes of all
  constexpr std::size_t kLongest = 1000;
  const std::string clean = header_text(text.substr(0, kLongest));
  if (warning.size() + clean.size() < kMost) {
    warning += (warning.empty() ? "" : "; ") + clean;
  }
}

void RequestRecord::set_caller(const Caller& caller) {
  key = caller.key;
  tenant = caller.tenant.name;
}

void RequestRecord::note_submitted(std::chrono::steady_clock::time_point now) {
  int64_t none = -1;
  submitted_us.compare_exchange_strong(none, duration_cast<microseconds>(now - received).count());
}

void RequestRecord::note_first_token(std::chrono::steady_clock::time_point now) {
  int64_t none = -1;
  first_token_us.compare_exchange_strong(none, duration_cast<microseconds>(now - received).count());
}

std::string request_id_of(std::string_view given) {
  const bool usable =
      !given.empty() && given.size() <= kMaxRequestId &&
      std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (usable) {
    return std::string(given);
  }
  return fmt::format("{:016x}{:016x}", unique_number(), unique_number());
}

std::string traceparent_of(std::string_view given) {
  constexpr std::string_view kForm = "00-tttttttttttttttttttttttttttttttt-pppppppppppppppp-ff";
  if (given.size() != kForm.size() || !given.starts_with("00-")) {
    return "";
  }
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool hex = (given[i] >= '0' && given[i] <= '9') || (given[i] >= 'a' && given[i] <= 'f');
    if (kForm[i] == '-' ? given[i] != '-' : !hex) {
      return "";
    }
  }
  const bool zero = given.substr(3, 32).find_first_not_of('0') == std::string_view::npos ||
                    given.substr(36, 16).find_first_not_of('0') == std::string_view::npos;
  return zero ? "" : std::string(given);
}

std::string access_line(const RequestRecord& record, std::string_view status, bool complete) {
  std::string line =
      fmt::format("{} {} {} {:.1f} ms id={}", log_word(record.method), log_word(record.path),
                  status, milliseconds(total_us(record)), log_word(record.id));
  if (!record.trace.empty()) {
    line += fmt::format(" trace={}", log_word(record.trace).substr(3, 32));
  }
  if (!record.key.empty()) {
    line += fmt::format(" key={}", log_word(record.key));
  }
  if (!record.tenant.empty()) {
    line += fmt::format(" tenant={}", log_word(record.tenant));
  }
  if (!record.warning.empty()) {
    line += fmt::format(" warning=\"{}\"", record.warning);
  }
  if (record.prompt_tokens > 0) {
    line += fmt::format(" prompt={} cached={} completion={}", record.prompt_tokens.load(),
                        record.cached_tokens.load(), record.completion_tokens.load());
  }
  if (record.queue_us >= 0) {
    line += fmt::format(" queue={:.1f} ms", milliseconds(record.queue_us));
  }
  if (record.first_token_us >= 0) {
    line += fmt::format(" first={:.1f} ms", milliseconds(record.first_token_us));
  }
  return line + (complete ? "" : " cut");
}

std::string access_json(const RequestRecord& record, std::string_view status, bool complete) {
  nlohmann::ordered_json object = {{"time", log_time()},
                                   {"level", "info"},
                                   {"event", "request"},
                                   {"id", record.id},
                                   {"method", record.method},
                                   {"path", record.path},
                                   {"status", std::string(status)},
                                   {"ms", milliseconds(total_us(record))},
                                   {"complete", complete}};
  if (!record.trace.empty()) {
    object["trace_id"] = record.trace.substr(3, 32);
    object["parent_id"] = record.trace.substr(36, 16);
  }
  if (!record.key.empty()) {
    object["key"] = record.key;
  }
  if (!record.tenant.empty()) {
    object["tenant"] = record.tenant;
  }
  if (!record.warning.empty()) {
    object["warning"] = record.warning;
  }
  if (record.prompt_tokens > 0) {
    object["prompt_tokens"] = record.prompt_tokens.load();
    object["cached_tokens"] = record.cached_tokens.load();
    object["completion_tokens"] = record.completion_tokens.load();
  }
  if (record.queue_us >= 0) {
    object["queue_ms"] = milliseconds(record.queue_us);
  }
  if (record.first_token_us >= 0) {
    object["first_token_ms"] = milliseconds(record.first_token_us);
  }
  return object.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void log_access(const RequestRecord& record, std::string_view status, bool complete) {
  const auto logger = access_logger();
  const auto level = is_probe(record) ? spdlog::level::debug : spdlog::level::info;
  if (logger != nullptr && logger->should_log(level)) {
    logger->log(level, logs_json() ? access_json(record, status, complete)
                                   : access_line(record, status, complete));
  }
  const auto spans = span_logger();
  if (spans != nullptr && has_spans(record, logged_spans()) && !is_probe(record)) {
    spans->info(span_line(record, status, complete, std::chrono::system_clock::now()));
  }
}

}  // namespace tessera
