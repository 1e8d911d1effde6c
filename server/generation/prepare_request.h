#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/generation/service.h"

namespace tessera {

// Checks the model that a request names (check_model), and notes the adapter that has this name.
// Errors: as check_model().
absl::Status choose_model(const Service& service, std::string_view asked, GenerateRequest& request);

// Takes the request's adapter if it is in memory.
// Returns: true if prepare() must get the adapter, or the grammar, which may be there at once.
bool needs_preparing(Service& service, GenerateRequest& request);

// Gets the adapter of a request, then compiles its grammar. `done` is called once, now or later on
// another thread, with a null grammar if the request has none; it must not block. The
// request must live until then.
// Errors: those of AdapterStore::get and Service::compile.
void prepare(Service& service, GenerateRequest& request, GrammarStore::Done done);

// The same for a request that cannot wait.
// Errors: NotFound; Unavailable with the time of a retry, if the adapter is not in memory. It is
// then read.
absl::Status take_adapter(Service& service, GenerateRequest& request);

}  // namespace tessera
