#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/check.h"
#include "models/architectures/architecture.h"
#include "models/architectures/gemma3.h"
#include "models/architectures/granite.h"
#include "models/architectures/llama.h"
#include "models/architectures/mistral.h"
#include "models/architectures/mixtral.h"
#include "models/architectures/phi3.h"
#include "models/architectures/qwen2.h"
#include "models/architectures/qwen3.h"
#include "models/architectures/shared_expert.h"
#include "models/architectures/smollm3.h"

namespace tessera {
namespace {

constexpr Architecture kTable[] = {
    architectures::kLlama,
    architectures::kMistral,
    architectures::kMinistral,
    architectures::kMinistral3,
    architectures::kMistral3,
    architectures::kMixtral,
    architectures::kQwen2,
    architectures::kQwen3,
    architectures::kQwen3Moe,
    architectures::kPhi3,
    architectures::kGranite,
    architectures::kSmolLm3,
    architectures::kGemma3,
    architectures::kGemma3WithImages,
    architectures::kQwen2Moe,
    architectures::kGraniteMoe,
    architectures::kGraniteMoeShared,
};

}  // namespace

std::span<const Architecture> supported_architectures() {
  return kTable;
}

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTable), std::end(kTable),
                                   [&](const Architecture& one) { return one.name == name; });
  return found == std::end(kTable) ? nullptr : found;
}

const Architecture* find_gguf_architecture(std::string_view name, const GgufParts& parts) {
  const auto fits = [&](const Architecture& one) {
    const bool windowed = one.config.sliding_window == SlidingWindowRule::field;
    return std::tuple(one.gguf.experts == parts.experts, windowed == parts.sliding_window,
                      one.gguf.shared_expert == parts.shared_expert);
  };
  const Architecture* found = nullptr;
  for (const Architecture& one : kTable) {
    if (one.gguf.name == nullptr || one.gguf.name != name) continue;
    if (found == nullptr || fits(one) > fits(*found)) found = &one;
  }
  return found;
}

const Architecture& architecture_of(const ModelConfig& config) {
  const Architecture* found = find_architecture(config.architecture);
  TESSERA_CHECK(found != nullptr, "a config of an architecture that is not supported");
  return *found;
}

}  // namespace tessera
