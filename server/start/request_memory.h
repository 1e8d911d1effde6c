#pragma once

#include <cstddef>

#include "server/settings/settings.h"

namespace tessera {

// Most bytes of memory that requests may take, besides weights, workspace and KV cache. The process
// that serves has them; other ranks have none.
struct RequestMemory {
  std::size_t bodies = 0;       // HTTP bodies that are read, and answers that wait
  std::size_t grammars = 0;     // compiled ones, specs that wait, masks of tokens
  std::size_t compiling = 0;    // while all threads compile the largest grammars
  std::size_t messages = 0;     // gRPC counts its messages by itself, so it has a fixed part
  std::size_t calls = 0;        // of gRPC, besides their messages
  std::size_t parsing = 0;      // while all threads parse the longest bodies
  std::size_t connections = 0;  // heads of requests, in part or whole, of all connections
  std::size_t responses = 0;    // stored responses

  std::size_t total() const {
    return bodies + grammars + compiling + messages + calls + parsing + connections + responses;
  }
};

// Memory of an HTTP connection, at most, besides the body that is read.
std::size_t http_connection_bytes(const Settings& settings);

// Requires: valid settings. `http_connections`: as many as may be open.
RequestMemory request_memory_of(const Settings& settings, std::size_t http_connections);

}  // namespace tessera
