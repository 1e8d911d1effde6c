#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "server/generation/service.h"
#include "server/settings/settings.h"

namespace tessera {

// Loads settings.model and creates its engine, which is not started. Logs the model and the memory
// that it takes. `pool` must outlive the engine. `ranks`: the ranks that share the model, must
// outlive the engine; null: this process has the whole model.
// Errors: those of the model's files, and InvalidArgument for settings that do not fit the model.
absl::StatusOr<Service::Parts> load_model_parts(const Settings& settings, ThreadPool& pool,
                                                Communicator* ranks);

// Waits for the tokenizer, which is read beside the weights.
using AwaitTokenizer = std::function<absl::StatusOr<const Tokenizer*>()>;

// The same for the engine only, which is all that a rank other than the leader has. Collective over
// `ranks`. tokenizer: of the text that formats are checked with; null: none is checked
absl::StatusOr<std::unique_ptr<Engine>> load_engine(const Settings& settings,
                                                    const AwaitTokenizer& tokenizer,
                                                    ThreadPool& pool, Communicator* ranks);

}  // namespace tessera
