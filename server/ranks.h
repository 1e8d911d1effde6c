#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "server/settings.h"

namespace tessera {

// The ranks that share the model, as settings.tensor_parallel wants them and MPI's launcher has
// started them, this process one of them; null: it is 1, and this one has the model whole. A rank
// keeps to its share of the cores, and with --device cuda to a GPU of its own. Collective. Errors,
// which name the setting: InvalidArgument where the launcher has started another number of
// processes, Unimplemented where this build lacks what connects them.
absl::StatusOr<std::unique_ptr<Communicator>> join_ranks(const Settings& settings);

// What a rank does that does not lead: loads its part of the model, and steps with the one that
// leads until that one has stopped. Errors: as load_engine().
absl::Status follow(const Settings& settings, Communicator& ranks);

}  // namespace tessera
