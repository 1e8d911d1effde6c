#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/load/stub_server.h"

// load-stub [PORT [DELAY [GAP]]]: answers until it is killed, the first token after DELAY seconds,
// each later one after GAP seconds more; without them at once.
int main(int argc, char** argv) {
  const auto seconds = [&](int at) { return argc > at ? std::atof(argv[at]) : 0; };
  const tessera::load::StubServer server({.delay_seconds = seconds(2), .gap_seconds = seconds(3)},
                                         static_cast<uint16_t>(argc > 1 ? std::atoi(argv[1]) : 0));
  std::printf("%s\n", server.url().c_str());
  std::fflush(stdout);
  while (true) {
    ::pause();
  }
}
