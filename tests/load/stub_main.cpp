#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/load/stub_server.h"

// load-stub [PORT]: answers at once, until it is killed.
int main(int argc, char** argv) {
  const tessera::load::StubServer server({},
                                         static_cast<uint16_t>(argc > 1 ? std::atoi(argv[1]) : 0));
  std::printf("%s\n", server.url().c_str());
  std::fflush(stdout);
  while (true) {
    ::pause();
  }
}
