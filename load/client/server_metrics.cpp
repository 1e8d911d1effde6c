#include "load/client/server_metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera::load {
namespace {

constexpr double kUsageSlack = 1e-6;

std::string label_of(std::string_view line, std::string_view name) {
  const std::string start = absl::StrCat(std::string(name), "=\"");
  const size_t at = line.find(start);
  if (at == line.npos) {
    return "";
  }
  const size_t begin = at + start.size();
  return std::string(line.substr(begin, line.find('"', begin) - begin));
}

void add(std::optional<double>& sum, double value) {
  sum = sum.value_or(0) + value;
}

void take_line(std::string_view line, double value, ServerReading& reading) {
  const std::string_view name = line.substr(0, line.find_first_of("{ "));
  if (name == "vllm:num_requests_running") {
    add(reading.running, value);
  } else if (name == "vllm:num_requests_waiting") {
    add(reading.waiting, value);
  } else if (name == "vllm:kv_cache_usage_perc") {
    add(reading.kv_usage, value);
  } else if (name == "vllm:prefix_cache_queries_total") {
    add(reading.prefix_queries, value);
  } else if (name == "vllm:prefix_cache_hits_total") {
    add(reading.prefix_hits, value);
  } else if (name == "vllm:num_preemptions_total") {
    add(reading.preemptions, value);
  } else if (name == "tessera:kv_tightenings_total") {
    add(reading.tightenings, value);
  } else if (name == "process_resident_memory_bytes") {
    add(reading.resident_bytes, value);
  } else if (name == "tessera:prefix_cache_bytes") {
    add(reading.prefix_cache_bytes, value);
    if (label_of(line, "state") == "used") add(reading.locked_bytes, value);
  } else if (name == "tessera:kv_bytes") {
    const std::string state = label_of(line, "state");
    if (state == "private" || state == "shared") {
      reading.kv_bytes[label_of(line, "format")] += value;
    }
  }
}

}  // namespace

double ServerReading::kv_bytes_total() const {
  double total = 0;
  for (const auto& [format, bytes] : kv_bytes) {
    total += bytes;
  }
  return total;
}

std::optional<double> ServerReading::held_bytes() const {
  if (kv_bytes.empty()) {
    return std::nullopt;
  }
  return kv_bytes_total() - prefix_cache_bytes.value_or(0) + locked_bytes.value_or(0);
}

ServerReading parse_metrics(std::string_view text) {
  ServerReading reading;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t space = line.rfind(' ');
    double value = 0;
    if (!line.empty() && line[0] != '#' && space != line.npos &&
        absl::SimpleAtod(std::string(line.substr(space + 1)), &value)) {
      take_line(line, value, reading);
    }
  }
  return reading;
}

std::string idle_violation(const ServerReading& before, const ServerReading& after) {
  if (after.running.value_or(0) > before.running.value_or(0)) {
    return absl::StrCat(*after.running, " requests still run");
  }
  if (after.waiting.value_or(0) > before.waiting.value_or(0)) {
    return absl::StrCat(*after.waiting, " requests still wait");
  }
  if (const auto held = after.held_bytes();
      held && std::abs(*held) > std::abs(before.held_bytes().value_or(0))) {
    return absl::StrCat("sequences still hold ", *held, " bytes of the KV cache");
  }
  // Cached prefixes count as used on tessera-server, and not on vLLM.
  if (after.kv_bytes.empty() &&
      after.kv_usage.value_or(0) > before.kv_usage.value_or(0) + kUsageSlack) {
    return absl::StrCat("the KV cache is used by ", *after.kv_usage * 100, " %, before the run ",
                        before.kv_usage.value_or(0) * 100, " %");
  }
  return "";
}

}  // namespace tessera::load
