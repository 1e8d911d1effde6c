#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::load {

// State of a server at one moment. Absent: the server does not tell it.
struct ServerReading {
  double time = 0;  // seconds after the start of the run
  std::optional<double> running;
  std::optional<double> waiting;
  std::optional<double> kv_usage;            // share of the KV cache in use
  std::map<std::string, double> kv_bytes;    // in use, by format (tessera-server); gRPC: "all"
  std::optional<double> prefix_cache_bytes;  // of kv_bytes (tessera-server)
  std::optional<double> locked_bytes;        // of prefix_cache_bytes: in use by sequences
  std::optional<double> prefix_queries;      // tokens, since the server's start
  std::optional<double> prefix_hits;
  std::optional<double> preemptions;
  std::optional<double> tightenings;     // steps of KV budgets (tessera-server)
  std::optional<double> resident_bytes;  // memory of the server's process

  double kv_bytes_total() const;
  // Returns: bytes that sequences hold: in use, and not only in the prefix cache.
  std::optional<double> held_bytes() const;
};

// Reads Prometheus text by the names of vLLM and tessera-server. Unknown lines are skipped.
ServerReading parse_metrics(std::string_view text);

// Returns: why the server still holds resources of the run; empty if it is as idle as before.
std::string idle_violation(const ServerReading& before, const ServerReading& after);

}  // namespace tessera::load
