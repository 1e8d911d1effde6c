#pragma once

#include "absl/status/statusor.h"
#include "kernels/cpu/thread_pool.h"
#include "server/service.h"
#include "server/settings.h"

namespace tessera {

// Loads what settings.model names and puts an engine around it, which has not been started. Logs
// what it is and what memory it takes. `pool` must outlive the engine, and so must `ranks`, those
// that share the model; null: this process has it whole.
// Errors: those of the files of the model, and InvalidArgument for settings that do not suit it.
absl::StatusOr<Service::Parts> load_model_parts(const Settings& settings, ThreadPool& pool,
                                                Communicator* ranks);

// The same of the engine alone: all that a rank has that does not lead. Of ranks, collective.
absl::StatusOr<std::unique_ptr<Engine>> load_engine(const Settings& settings, ThreadPool& pool,
                                                    Communicator* ranks);

}  // namespace tessera
