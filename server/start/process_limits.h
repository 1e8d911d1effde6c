#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// Most connections of each front end. Together with the process's own files they fit its limit of
// open files, so that no front end takes the descriptors of the other.
struct ConnectionLimits {
  std::size_t http = 0;
  std::size_t grpc = 0;
};

// Opens /dev/null for each of stdin, stdout and stderr that is closed. Otherwise a connection would
// get its number, and the log would go to a client. Where a library has got the number before
// main(), executes the program again, with the same arguments.
// Requires: no other thread was started before.
void open_standard_streams(char* const* arguments);

// Raises the soft limit of open files to the hard one.
// Returns: `wanted`, lowered if the limit is too small for it; gRPC then has a quarter.
// Errors: FailedPrecondition if the limit leaves too few for any use.
absl::StatusOr<ConnectionLimits> share_descriptors(ConnectionLimits wanted);

// Checks that the limit of the address space (ulimit -v) leaves `bytes` for requests, and some for
// the stacks of threads. Libraries abort the process where a thread cannot be started.
// Errors: FailedPrecondition, with both numbers.
absl::Status check_address_space(std::size_t bytes);

}  // namespace tessera
