#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/adapters/adapter_store.h"
#include "server/settings/settings.h"

namespace tessera {

// Makes the store of a start, and reads the adapters of --lora.
// engine: outlives the store. taken: names of the model itself.
// Returns: null for a server without adapters.
// Errors: those of AdapterStore::add, with the adapter's name; InvalidArgument for a taken name.
absl::StatusOr<std::unique_ptr<AdapterStore>> start_adapters(const Settings& settings,
                                                             const Engine& engine,
                                                             std::span<const std::string> taken);

}  // namespace tessera
