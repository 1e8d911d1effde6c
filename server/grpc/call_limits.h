#pragma once

#include <cstddef>

#include "server/grpc/open_calls.h"
#include "server/grpc/unread_messages.h"

namespace tessera {

// Bounds of the calls of all services. Its targets outlive every call.
struct CallLimits {
  OpenCalls& open;
  UnreadMessages& unread;
  std::size_t request_bytes;  // most of a request
};

}  // namespace tessera
