#pragma once

#include <memory>

#include "models/transformer.h"

namespace tessera {

// Returns: a transformer that several engines can use, so that the weights of a model are loaded
// once for all KV presets.
// Requires: one thread steps all of these engines in turn, and each reads its logits before another
// one computes.
std::unique_ptr<Transformer> share_transformer(std::shared_ptr<Transformer> shared);

}  // namespace tessera
