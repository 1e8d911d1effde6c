#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "load/request/request.h"

namespace tessera::load {

// Consecutive requests of one client: one, or the turns of a chat. Its workload must outlive it.
class Session {
 public:
  virtual ~Session() = default;
  virtual LoadRequest next() = 0;

  // Takes the answer of the last request.
  // Returns: seconds until the next request. Nothing: the session has ended.
  virtual std::optional<double> answered(const std::string& text) = 0;
};

// A source of sessions. Each is a pure function of the run's seed and its number.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual std::unique_ptr<Session> session(uint64_t number, uint64_t seed) const = 0;

  // Returns: how many sessions there are. Nothing: any number.
  virtual std::optional<uint64_t> sessions() const { return std::nullopt; }

  // Returns: the start of a session in a trace, in seconds. Nothing: the workload has no times.
  virtual std::optional<double> start_of(uint64_t /*number*/) const { return std::nullopt; }

  // Returns: requests whose answers must be known before the run; see learn().
  virtual std::vector<LoadRequest> asked_idle(uint64_t /*seed*/) const { return {}; }

  // Takes the idle server's answers to asked_idle(), in that order.
  virtual void learn(const std::vector<Answer>& /*answers*/) {}
};

// Name and settings of a workload: "recall:keys=8:input=400".
struct WorkloadSpec {
  std::string text;
  std::string name;
  std::map<std::string, std::string> settings;

  // Errors: InvalidArgument (a setting without "=").
  static absl::StatusOr<WorkloadSpec> parse(std::string_view text);
};

// Facts about the server that workloads depend on.
struct ServerTraits {
  double tokens_per_word = 1.3;
  // tessera-server: takes `deterministic` requests, and no messages with tool_calls.
  bool tessera = false;
};

// Errors: InvalidArgument names the workload or setting; NotFound names a file.
absl::StatusOr<std::unique_ptr<Workload>> make_workload(const WorkloadSpec& spec,
                                                        const ServerTraits& server);

// Returns: the workloads and their settings, a line each, for --help.
std::string describe_workloads();

// Workloads by weight. The number of a session decides which one it belongs to.
class Mix {
 public:
  void add(std::unique_ptr<Workload> workload, double weight);
  std::unique_ptr<Session> session(uint64_t number, uint64_t seed) const;

  // Returns: the number of sessions of a trace or file that is alone in the mix.
  std::optional<uint64_t> sessions() const;
  std::optional<double> start_of(uint64_t number) const;
  std::vector<Workload*> all() const;

 private:
  struct Part {
    std::unique_ptr<Workload> workload;
    double weight;
  };
  std::vector<Part> parts_;
  double total_ = 0;
};

}  // namespace tessera::load
