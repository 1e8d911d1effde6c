#include "bench/report.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tessera::bench {
namespace {

// Bytes or operations per nanosecond, i.e. giga per second.
double rate(int64_t amount, double nanoseconds) {
  return static_cast<double>(amount) / nanoseconds;
}

const char* limit_of(const Floor& floor) {
  return floor.by_bytes ? "bytes" : "flops";
}

double share_of_floor(const Measured& measured) {
  return measured.floor.nanoseconds / measured.call.median;
}

std::string maker_of(const Variant& variant) {
  return variant.peer.empty() ? variant.isa : variant.peer;
}

nlohmann::ordered_json json_of(const Machine& machine) {
  nlohmann::ordered_json json{{"device", machine.device},
                              {"what", machine.what},
                              {"threads", machine.threads},
                              {"load", machine.load},
                              {"memory_bytes", machine.memory_bytes},
                              {"read_gb_s", machine.bandwidth.read},
                              {"copy_gb_s", machine.bandwidth.copy}};
  json["peaks"] = nlohmann::ordered_json::array();
  for (const Machine::Peak& peak : machine.peaks) {
    json["peaks"].push_back({{"isa", peak.isa},
                             {"arithmetic", name(peak.arithmetic)},
                             {"instruction", peak.instruction},
                             {"gflop_s", peak.gflops}});
  }
  return json;
}

nlohmann::ordered_json json_of(const Row& row) {
  const Measured& measured = row.measured;
  const OpCost& cost = row.variant.cost;
  nlohmann::ordered_json json{{"op", row.op}, {"shape", row.shape}, {"case", row.label}};
  json["parameters"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : row.parameters) {
    json["parameters"][key] = value;
  }
  json.update({{"format", row.variant.format},
               {"isa", row.variant.isa},
               {"peer", row.variant.peer},
               {"samples", measured.samples},
               {"calls_per_sample", measured.calls_per_sample},
               {"least_us", measured.call.min / 1e3},
               {"lower_quartile_us", measured.call.lower_quartile / 1e3},
               {"median_us", measured.call.median / 1e3},
               {"upper_quartile_us", measured.call.upper_quartile / 1e3},
               {"ratio", row.ratio},
               {"read_bytes", cost.read_bytes},
               {"written_bytes", cost.written_bytes},
               {"flops", cost.flops},
               {"gb_s", rate(cost.bytes(), measured.call.median)},
               {"gflop_s", rate(cost.flops, measured.call.median)},
               {"floor_us", measured.floor.nanoseconds / 1e3},
               {"limit", limit_of(measured.floor)},
               {"share_of_floor", share_of_floor(measured)},
               {"cycled_bytes", row.variant.cycled_bytes},
               {"read_gb_s_beside", measured.beside.read},
               {"copy_gb_s_beside", measured.beside.copy},
               {"peak_gflop_s", measured.peak}});
  return json;
}

}  // namespace

void print_machine(const Machine& machine) {
  std::printf("%s, %s. Memory (%lld MiB gone around): %.1f GB/s read, %.1f GB/s copied.\n",
              machine.device.c_str(), machine.what.c_str(),
              static_cast<long long>(machine.memory_bytes >> 20), machine.bandwidth.read,
              machine.bandwidth.copy);
  for (const Machine::Peak& peak : machine.peaks) {
    std::printf("Peak of %s %s (%s): %.0f GFLOP/s.\n", peak.isa.c_str(),
                std::string(name(peak.arithmetic)).c_str(), peak.instruction.c_str(), peak.gflops);
  }
  if (machine.load > 0.5) {
    std::printf("Other work is running (load %.1f): these times are noisy.\n", machine.load);
  }
}

void print_heading() {
  std::printf(
      "\n| %-11s | %-5s | %-42s | %-6s | %-6s | %10s | %23s | %7s | %7s | %10s | %5s | %8s | %7s "
      "|\n",
      "op", "shape", "case", "format", "by", "us", "quartiles", "GB/s", "GFLOP/s", "floor us",
      "limit", "of floor", "ratio");
  std::printf("|---|---|---|---|---|--:|--:|--:|--:|--:|---|--:|--:|\n");
}

void print_row(const Row& row) {
  const Measured& measured = row.measured;
  const Spread& call = measured.call;
  char quartiles[64];
  std::snprintf(quartiles, sizeof(quartiles), "%.2f - %.2f", call.lower_quartile / 1e3,
                call.upper_quartile / 1e3);
  std::printf(
      "| %-11s | %-5s | %-42s | %-6s | %-6s | %10.2f | %23s | %7.1f | %7.1f | %10.2f | %5s | %6.0f "
      "%% | %7.2f |\n",
      row.op.c_str(), row.shape.c_str(), row.label.c_str(), row.variant.format.c_str(),
      maker_of(row.variant).c_str(), call.median / 1e3, quartiles,
      rate(row.variant.cost.bytes(), call.median), rate(row.variant.cost.flops, call.median),
      measured.floor.nanoseconds / 1e3, limit_of(measured.floor), 100 * share_of_floor(measured),
      row.ratio);
  std::fflush(stdout);
}

bool write_json(const Machine& machine, const std::vector<Row>& rows, const std::string& path) {
  nlohmann::ordered_json json{{"version", TESSERA_VERSION}, {"machine", json_of(machine)}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    json["rows"].push_back(json_of(row));
  }
  std::ofstream file(path);
  file << json.dump(1) << '\n';
  file.close();
  return !file.fail();
}

}  // namespace tessera::bench
