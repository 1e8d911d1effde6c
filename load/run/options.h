#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/arrivals/arrivals.h"
#include "load/run/faults.h"
#include "load/run/server_process.h"
#include "load/stats/measures.h"
#include "load/workload/workload.h"

namespace tessera::load {

// Command line options of a run. The initialisers are the defaults.
struct LoadOptions {
  std::string url = "http://127.0.0.1:8080";  // or grpc://HOST:PORT
  std::string api_key;
  std::string model;  // empty: the first that the server lists
  std::vector<WorkloadSpec> workloads;
  std::optional<double> rate;
  ArrivalOptions arrivals;  // its rates come from `rate`
  int32_t concurrency = 0;  // above 0: closed loop
  struct Range {
    double low = 0;
    double high = 0;
  };
  std::optional<Range> sweep;
  std::vector<double> rates;  // one run at each
  std::vector<SloLimit> slos;
  double duration = 0;
  uint64_t requests = 0;
  uint64_t first_session = 0;
  double warmup = 0;
  uint64_t seed = 0;
  double min_correct = 1;
  double timeout = 600;
  double freeze = 5;
  double settle = 10;  // seconds until the server must be idle after a run
  size_t max_in_flight = 8192;
  FaultMix faults;
  std::optional<ServerProcess> process;  // of the server; needed for `signals`
  std::vector<PlannedSignal> signals;
  std::optional<double> max_growth;  // bytes of the server's memory from the warm-up's end on
  bool flush_cache = false;          // before each run
  double flush_period = 0;           // seconds between flushes during a run; 0: none
  std::filesystem::path json;
  std::filesystem::path html;
  std::filesystem::path records;
  std::string command;  // for the report; without the API key
};

}  // namespace tessera::load
