#include "bench/shape.h"

namespace tessera::bench {
namespace {

constexpr Shape kShapes[] = {
    {.name = "micro",
     .parameters = 120'000,
     .layers = 2,
     .hidden = 64,
     .query_heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .ffn = 128,
     .vocab = 512,
     .context = 512},
    {.name = "tiny",
     .parameters = 5'800'000,
     .layers = 6,
     .hidden = 256,
     .query_heads = 4,
     .kv_heads = 2,
     .head_dim = 128,
     .ffn = 512,
     .vocab = 4096,
     .context = 2048},
    {.name = "110m",
     .parameters = 110'000'000,
     .layers = 12,
     .hidden = 768,
     .query_heads = 12,
     .kv_heads = 12,
     .head_dim = 64,
     .ffn = 2048,
     .vocab = 32000,
     .context = 1024},
    {.name = "1b",
     .parameters = 1'100'000'000,
     .layers = 22,
     .hidden = 2048,
     .query_heads = 32,
     .kv_heads = 4,
     .head_dim = 64,
     .ffn = 5632,
     .vocab = 32000,
     .context = 2048},
    {.name = "8b",
     .parameters = 8'000'000'000,
     .layers = 32,
     .hidden = 4096,
     .query_heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 14336,
     .vocab = 128256,
     .context = 8192},
};

}  // namespace

std::vector<Matrix> Shape::matrices() const {
  return {{"qkv", hidden, query_width() + 2 * kv_width()},
          {"out", query_width(), hidden},
          {"gate_up", hidden, 2 * ffn},
          {"down", ffn, hidden},
          {"head", hidden, vocab}};
}

std::span<const Shape> all_shapes() {
  return kShapes;
}

}  // namespace tessera::bench
