#pragma once

#include <string>

#include "engine/engine.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_arena.h"
#include "models/transformer.h"

namespace tessera {

// Returns: a text of all that the bits of a prefix block depend on, besides its format, its salt
// and its tokens: the program's version, the kernels, the model's files and settings, and the
// layout of pages. Two engines with the same text read each other's blocks.
std::string store_fingerprint(const EngineOptions& options, const Transformer& model,
                              const Backend& backend, const KvArenaShape& shape);

}  // namespace tessera
