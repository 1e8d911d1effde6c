#pragma once

#include "absl/status/status.h"
#include "engine/request.h"

namespace tessera {

// Returns: the error of a sample that was cancelled or has failed, as its client gets it; OK for
// every other end.
absl::Status status_of(const Finish& finish);

}  // namespace tessera
