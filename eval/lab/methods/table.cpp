#include <array>

#include "eval/lab/method.h"
#include "eval/lab/methods/full.h"
#include "eval/lab/methods/snap_kv.h"
#include "eval/lab/methods/streaming_llm.h"

namespace tessera::lab {
namespace {

constexpr auto kMethods = std::to_array<MethodLine>({
    {"full", "", "Keeps every token in f16.", "", Full::make},
    {"snapkv", "SnapKV (Li et al., 2024), algorithm 1",
     "Keeps the tokens that the prompt's last queries attend to.", "", SnapKv::make},
    {"streaming-llm", "StreamingLLM (Xiao et al., 2023), section 3.2",
     "Keeps the first and the newest tokens.", "", StreamingLlm::make},
});

}  // namespace

std::span<const MethodLine> methods() {
  return kMethods;
}

}  // namespace tessera::lab
