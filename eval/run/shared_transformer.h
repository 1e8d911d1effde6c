#pragma once

#include <memory>

#include "models/transformer.h"

namespace tessera {

// A transformer that several engines use, so that the weights of a model are loaded once for all KV
// presets. One thread steps all of these engines, one after the other: each reads its logits before
// another one computes.
std::unique_ptr<Transformer> share_transformer(std::shared_ptr<Transformer> shared);

}  // namespace tessera
