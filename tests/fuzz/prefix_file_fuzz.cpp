// Input: a file of a prefix. A part that is accepted is printed as it was.
#include "base/check.h"
#include "server/generation/prefix_file.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const std::string_view file = text_of(data, size);
  std::string_view rest = file;
  const auto part = take_prefix_part(rest);
  if (part.ok()) {
    std::string printed;
    print_prefix_part(*part, printed);
    TESSERA_CHECK(printed == file.substr(0, file.size() - rest.size()),
                  "a part is printed otherwise");
  }
  return 0;
}
