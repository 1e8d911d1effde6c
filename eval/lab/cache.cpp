#include "eval/lab/cache.h"

#include <numeric>

namespace tessera::lab {

void add_tokens(const Prompt& prompt, int32_t layer, int32_t kv_head,
                std::span<const int32_t> positions, Cache& to) {
  const LayerPrompt& from = prompt.layers[static_cast<size_t>(layer)];
  const MatrixView<const float> keys = from.keys_of(prompt.shape, kv_head);
  const MatrixView<const float> values = from.values_of(prompt.shape, kv_head);
  HeadCache& head = to.at(layer, kv_head);
  for (const int32_t position : positions) {
    head.add(position, keys.row(position), values.row(position));
  }
}

void add_all_tokens(const Prompt& prompt, Cache& to) {
  std::vector<int32_t> all(prompt.tokens.size());
  std::iota(all.begin(), all.end(), 0);
  for (int32_t layer = 0; layer < prompt.shape.layers; ++layer) {
    for (int32_t head = 0; head < prompt.shape.kv_heads; ++head) {
      add_tokens(prompt, layer, head, all, to);
    }
  }
}

}  // namespace tessera::lab
