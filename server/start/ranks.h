#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "server/settings/settings.h"

namespace tessera {

// Joins the ranks that share the model: settings.tensor_parallel processes, started by MPI's
// launcher. A rank uses only its share of the cores, and with --device cuda a GPU of its own.
// Collective.
// Returns: the communicator of this rank; null if tensor_parallel is 1 and this process has the
// whole model.
// Errors, which name the setting: InvalidArgument if the launcher has started another number of
// processes. Unimplemented if this build lacks the library that connects the ranks.
absl::StatusOr<std::unique_ptr<Communicator>> join_ranks(const Settings& settings);

// Runs a rank other than the leader: loads its part of the model, and runs the leader's steps until
// the leader has stopped.
// Errors: as load_engine().
absl::Status follow(const Settings& settings, Communicator& ranks);

}  // namespace tessera
