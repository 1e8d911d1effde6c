#pragma once

#include <cstdio>
#include <cstdlib>

// Reports the location and aborts if `condition` is false: for errors that only a bug in this code
// can cause. Errors of a client, a file or the network are an absl::Status in the layers above.
#define TESSERA_CHECK(condition, message)                                                   \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, __LINE__, #condition, \
                   message);                                                                \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
