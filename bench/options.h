#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/shape.h"

namespace tessera::bench {

// The command line. Names are checked against what there is when it is parsed, all but those of
// instruction sets, which depend on the device.
struct Options {
  std::string device = "cpu";
  int threads = 0;  // 0: all
  std::vector<std::string> ops;
  std::vector<std::string> shapes;
  std::vector<std::string> isas;     // empty: the best
  std::vector<std::string> weights;  // these two, empty: all that the device has
  std::vector<std::string> kv;
  std::vector<std::string> cases;  // parts of labels; empty: all
  std::vector<Matrix> matrices;
  int64_t memory_bytes = 0;  // 0: beyond the caches
  bool as_in_model = false;
  bool peers = false;
  double seconds = 0;  // for each variant of each case
  std::string json;    // a file; empty: none
};

// Nothing, when the program has been told to end (by --help or by a mistake): `exit_code` is set,
// and what there is to say has been printed.
std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code);

}  // namespace tessera::bench
