#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/shape.h"

namespace tessera::bench {

// Command line options. Names are checked when they are parsed, except those of instruction sets,
// which depend on the device.
struct Options {
  std::string device = "cpu";
  int threads = 0;  // 0: all
  std::vector<std::string> ops;
  std::vector<std::string> shapes;
  std::vector<std::string> isas;     // empty: the best
  std::vector<std::string> weights;  // empty: all that the device has
  std::vector<std::string> kv;       // empty: all that the device has
  std::vector<std::string> cases;    // substrings of labels; empty: all
  std::vector<Matrix> matrices;
  int64_t memory_bytes = 0;  // 0: Device::bytes_beyond_caches()
  bool as_in_model = false;
  bool peers = false;
  double seconds = 0;  // budget of each variant of each case
  std::string json;    // output file; empty: none
};

// Returns: nothing if the program must exit, after --help or an error. `exit_code` is then set, and
// the message has been printed.
std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code);

}  // namespace tessera::bench
