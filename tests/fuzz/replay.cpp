// Runs a fuzz target over the files of its corpus, for compilers without libFuzzer.
#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/fuzz/fuzz_target.h"
#include "tests/models/temporary_directory.h"

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      // the last path printed is the input that failed
      std::fprintf(stderr, "%s\n", entry.path().c_str());
      const std::string bytes = tessera::read_file(entry.path());
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++files;
    }
  }
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
