#include "server/telemetry/spans.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/base/unique_id.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::nanoseconds;

// Numbers of opentelemetry-proto, which JSON has in place of the names.
constexpr int kInternal = 1;      // Span.kind: a part of the work
constexpr int kServer = 2;        // Span.kind: a request
constexpr int kError = 2;         // Status.code
constexpr int kSampled = 0x001;   // Span.flags
constexpr int kRemote = 0x300;    // Span.flags: the parent is known to be of another process
constexpr int64_t kMicro = 1000;  // nanoseconds

Json attribute(std::string_view key, std::string_view value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

Json attribute(std::string_view key, int64_t value) {
  return {{"key", key}, {"value", {{"intValue", fmt::format("{}", value)}}}};
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Describes this process: in a pod, the host's name is the pod's.
const Json& resource() {
  static const Json kMade = {
      {"attributes",
       {attribute("service.name", "tessera"), attribute("service.version", TESSERA_VERSION),
        attribute("service.instance.id", host_name())}}};
  return kMade;
}

std::string new_span() {
  return fmt::format("{:016x}", unique_number());
}

// By the semantic conventions, only the server's faults are errors.
bool is_error(const RequestRecord& record, std::string_view status) {
  constexpr std::string_view kFaults[] = {"UNKNOWN",  "DEADLINE_EXCEEDED", "UNIMPLEMENTED",
                                          "INTERNAL", "UNAVAILABLE",       "DATA_LOSS"};
  return record.method == "gRPC"
             ? std::find(std::begin(kFaults), std::end(kFaults), status) != std::end(kFaults)
             : status.starts_with('5');
}

Json attributes_of(const RequestRecord& record, std::string_view status, bool complete) {
  Json list = Json::array();
  if (record.method == "gRPC") {
    list.push_back(attribute("rpc.system", "grpc"));
    list.push_back(attribute("rpc.method", std::string_view(record.path).substr(1)));
    list.push_back(attribute("rpc.response.status_code", status));
  } else {
    list.push_back(attribute("http.request.method", record.method));
    list.push_back(attribute("url.path", record.path));
    list.push_back({{"key", "http.response.status_code"}, {"value", {{"intValue", status}}}});
  }
  list.push_back(attribute("tessera.request_id", record.id));
  if (!record.tenant.empty()) {
    list.push_back(attribute("tessera.tenant", record.tenant));
  }
  if (record.prompt_tokens > 0) {
    list.push_back(attribute("gen_ai.usage.input_tokens", record.prompt_tokens));
    list.push_back(attribute("gen_ai.usage.cache_read.input_tokens", record.cached_tokens));
    list.push_back(attribute("gen_ai.usage.output_tokens", record.completion_tokens));
  }
  if (!complete) {
    list.push_back({{"key", "tessera.cut"}, {"value", {{"boolValue", true}}}});
  }
  return list;
}

}  // namespace

bool has_spans(const RequestRecord& record, Spans spans) {
  if (record.trace.empty()) {
    return spans == Spans::all;
  }
  const char flags = record.trace.back();  // of its two digits, the one with the bit "sampled"
  const int digit = flags <= '9' ? flags - '0' : flags - 'a' + 10;
  return spans != Spans::off && digit % 2 == 1;
}

std::string span_line(const RequestRecord& record, std::string_view status, bool complete,
                      std::chrono::system_clock::time_point now) {
  const int64_t end = nanoseconds(now.time_since_epoch()).count();
  const int64_t start =
      end - nanoseconds(std::chrono::steady_clock::now() - record.received).count();
  const bool remote = !record.trace.empty();
  const std::string trace = remote ? record.trace.substr(3, 32) : new_span() + new_span();
  Json spans = Json::array();
  const auto add = [&](std::string_view name, std::string_view parent, int kind, int64_t from,
                       int64_t to) -> Json& {
    Json span = {{"traceId", trace}, {"spanId", new_span()}};
    if (!parent.empty()) {
      span["parentSpanId"] = parent;
    }
    span["flags"] = kSampled | (kind == kServer && remote ? kRemote : 0);
    span["name"] = name;
    span["kind"] = kind;
    span["startTimeUnixNano"] = fmt::format("{}", from);
    span["endTimeUnixNano"] = fmt::format("{}", to);
    return spans.emplace_back(std::move(span));
  };
  Json& whole =
      add(record.method == "gRPC" ? record.path.substr(1) : record.method + " " + record.path,
          remote ? record.trace.substr(36, 16) : "", kServer, start, end);
  const std::string id = whole["spanId"];
  whole["attributes"] = attributes_of(record, status, complete);
  if (is_error(record, status)) {
    whole["status"] = {{"code", kError}};
  }
  if (record.submitted_us >= 0) {
    // Clocks of other threads noted these; a part never ends before it begins.
    const int64_t submitted = std::min(start + record.submitted_us * kMicro, end);
    const int64_t admitted =
        record.queue_us < 0 ? end : std::min(submitted + record.queue_us * kMicro, end);
    add("queue", id, kInternal, submitted, admitted);
    if (record.queue_us >= 0) {
      const int64_t first = record.first_token_us < 0
                                ? end
                                : std::clamp(start + record.first_token_us * kMicro, admitted, end);
      add("prefill", id, kInternal, admitted, first);
      if (record.first_token_us >= 0) {
        add("decode", id, kInternal, first, end);
      }
    }
  }
  const Json line = {
      {"resourceSpans",
       {{{"resource", resource()},
         {"scopeSpans", {{{"scope", {{"name", "tessera-server"}}}, {"spans", spans}}}}}}}};
  return line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace tessera
