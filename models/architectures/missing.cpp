#include "models/architectures/missing.h"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

struct Missing {
  std::string_view beginning;  // of the architecture's name; the first that fits counts
  std::string_view part;
};

constexpr Missing kMissing[] = {
    {"Llama4", "attention in chunks and experts beside a shared one are"},
    {"Mllama", "layers that attend to images are"},
    {"Mistral4", "multi-head latent attention (MLA) is"},
    {"MistralLarge", "multi-head latent attention (MLA) is"},
    {"Deepseek", "multi-head latent attention (MLA) is"},
    {"Kimi", "multi-head latent attention (MLA) is"},
    {"Gemma4", "KV layers that others share are"},
    {"Gemma3n", "KV layers that others share, and embeddings of each layer, are"},
    {"Gemma3TextModel", "attention in both directions is"},
    {"Gemma2", "capped logits are"},
    {"Gemma", "the first Gemma's form is"},
    {"VaultGemma", "capped logits are"},
    {"Qwen3Next", "linear attention (gated delta networks) is"},
    {"Qwen3_5", "linear attention (gated delta networks) is"},
    {"Qwen2VL", "images and their positions in three dimensions are"},
    {"Qwen2_5_VL", "images and their positions in three dimensions are"},
    {"Qwen3VL", "images and their positions in three dimensions are"},
    {"GptOss", "attention sinks, biases and clamped gates of experts, and weights in MXFP4 are"},
    {"GraniteMoeHybrid", "Mamba layers are"},
    {"Afmoe", "gates of attention's output, and experts chosen by a sigmoid, are"},
    {"Phi3V", "an encoder of images is"},
    {"Phi4M", "an encoder of images and sound is"},
    {"Phimoe", "sparse mixing of experts (SparseMixer) is"},
    {"PhiMoE", "sparse mixing of experts (SparseMixer) is"},
    {"Pixtral", "an encoder of images is"},
    {"Llava", "an encoder of images is"},
    {"Voxtral", "an encoder of sound is"},
    {"Olmo", "norms of whole q and k, and norms behind each block, are"},
    {"Cohere", "attention and feed-forward block side by side are"},
    {"Mamba", "Mamba layers are"},
    {"Jamba", "Mamba layers are"},
    {"FalconH1", "Mamba layers are"},
    {"NemotronH", "Mamba layers are"},
    {"Zamba", "Mamba layers are"},
    {"GPT2", "positions that are learned, and norms with a mean, are"},
};

}  // namespace

std::string missing_part(std::string_view architecture) {
  const auto* found =
      std::find_if(std::begin(kMissing), std::end(kMissing),
                   [&](const Missing& one) { return architecture.starts_with(one.beginning); });
  return found == std::end(kMissing) ? std::string() : std::string(found->part) + " not supported";
}

}  // namespace tessera
