// Runs fuzz targets over the files of their corpora, for compilers without libFuzzer.
//   replay NAME FOLDER
#include "tests/fuzz/replay.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

// Built at the first use: targets register before main(), in no order.
std::map<std::string, ReplayTarget::Run>& targets() {
  static std::map<std::string, ReplayTarget::Run> all;
  return all;
}

// Returns: the number of files.
int replay(ReplayTarget::Run run, const char* folder) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    // the last path printed is the input that failed
    std::fprintf(stderr, "%s\n", entry.path().c_str());
    const std::string bytes = read_file(entry.path());
    run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++files;
  }
  return files;
}

}  // namespace

ReplayTarget::ReplayTarget(const char* name, Run run) {
  targets().emplace(name, run);
}

}  // namespace tessera

int main(int argc, char** argv) {
  const auto target = argc == 3 ? tessera::targets().find(argv[1]) : tessera::targets().end();
  if (target == tessera::targets().end()) {
    std::fprintf(stderr, "expected the name of a target and a folder\n");
    return 1;
  }
  const int files = tessera::replay(target->second, argv[2]);
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
