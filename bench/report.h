#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace tessera::bench {

// What was known before the first case.
struct Machine {
  std::string device;
  std::string what;  // Device::describe()
  int threads = 0;
  int64_t memory_bytes = 0;  // what bandwidth was measured over
  Bandwidth bandwidth;
  struct Peak {
    std::string isa;
    WeightFormat arithmetic;
    std::string instruction;
    double gflops = 0;
  };
  std::vector<Peak> peaks;
  double load = 0;  // the system's, over the last minute
};

struct Row {
  std::string op;
  std::string shape;
  std::string label;
  std::vector<std::pair<std::string, int64_t>> parameters;
  Variant variant;  // without its call
  Measured measured;
  double ratio = 1;  // of its median to the first variant's
};

// Markdown, to stdout, so that it can be read and be pasted.
void print_machine(const Machine& machine);
void print_heading();
void print_row(const Row& row);

// Every number of the table and more; false when the file cannot be written.
bool write_json(const Machine& machine, const std::vector<Row>& rows, const std::string& path);

}  // namespace tessera::bench
