#include "load/report/machine.h"

#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_format.h"

namespace tessera::load {

std::string describe_machine() {
  std::ifstream file("/proc/cpuinfo");
  std::string model = "unknown processors";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      model = line.substr(line.find(": ") + 2);
      break;
    }
  }
  double load = 0;
  getloadavg(&load, 1);
  return absl::StrFormat("%d x %s, load average %.1f", std::thread::hardware_concurrency(), model,
                         load);
}

}  // namespace tessera::load
