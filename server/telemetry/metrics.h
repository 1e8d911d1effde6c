#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace tessera {

// Metrics of /metrics: the ecosystem's names (`vllm:...`), because gateways and dashboards scrape
// them, and our own under `tessera:`. Thread-safe.
//
//   TTFT = request received to first token; inter-token latency = gaps between tokens;
//   E2E = request received to its end; decode = first token to the end;
//   queue = submission to the engine to first slot; prefill = first slot to first token;
//   TPOT = (E2E - TTFT) / (tokens - 1). Seconds, for each sequence.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  void first_token(std::chrono::duration<double> since_received);
  void next_token(std::chrono::duration<double> since_previous);
  void accepted(std::size_t sequences, int32_t max_tokens);
  // `since_first`: time since the first token; none if there was no token.
  void finished(const Finish& finish, std::chrono::duration<double> since_received,
                std::optional<std::chrono::duration<double>> since_first);
  void rejected(const absl::Status& status);  // refused at submission

  // The same by tenant, for servers with a tenant file; an empty name has no effect. At most
  // kTenantLabels names become labels, the others count together as "other".
  void tenant_finished(const std::string& tenant, const Finish& finish);
  void tenant_refused(const std::string& tenant);
  static constexpr std::size_t kTenantLabels = 100;

  // A part of the memory that requests take, and its bytes now.
  using MemoryPart = std::pair<std::string, int64_t>;

  // Returns: Prometheus text exposition, format 0.0.4. `stats` and `options` are those of the
  // engine now. memory: anonymous memory of the process, in bytes.
  std::string expose(const EngineStats& stats, const EngineOptions& options, int64_t memory,
                     std::span<const MemoryPart> parts = {}) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace tessera
