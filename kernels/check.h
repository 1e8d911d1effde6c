#pragma once

#include <cstdio>
#include <cstdlib>

// For what only a bug of our own can cause: says where, and aborts. What a client, a file or the
// network can cause is an absl::Status instead, in the layers above this one.
#define TESSERA_CHECK(condition, message)                                                   \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, __LINE__, #condition, \
                   message);                                                                \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
