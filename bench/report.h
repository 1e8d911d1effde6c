#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace tessera::bench {

// Properties of the machine, measured before the first case.
struct Machine {
  std::string device;
  std::string what;  // Device::describe()
  int threads = 0;
  int64_t memory_bytes = 0;  // bytes that bandwidth was measured over
  Bandwidth bandwidth;
  struct Peak {
    std::string isa;
    WeightFormat arithmetic;
    std::string instruction;
    double gflops = 0;
  };
  std::vector<Peak> peaks;
  double load = 0;  // system load, the mean over the last minute
};

struct Row {
  std::string op;
  std::string shape;
  std::string label;
  std::vector<std::pair<std::string, int64_t>> parameters;
  Variant variant;  // its call and restore are empty
  Measured measured;
  double ratio = 1;  // its median over the first variant's median
};

// These print Markdown to stdout, so that it can be read and pasted.
void print_machine(const Machine& machine);
void print_heading();
void print_row(const Row& row);

// Writes every number of the table and more.
// Returns: false if the file cannot be written.
bool write_json(const Machine& machine, const std::vector<Row>& rows, const std::string& path);

}  // namespace tessera::bench
