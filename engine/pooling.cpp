#include "engine/pooling.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

std::optional<Pooling> parse_pooling(std::string_view name) {
  for (const NamedPooling& named : kPoolings) {
    if (named.name == name) {
      return named.pooling;
    }
  }
  return std::nullopt;
}

HiddenPool::HiddenPool(Pooling pooling, int32_t prompt_tokens, int32_t hidden)
    : next_(pooling == Pooling::last ? prompt_tokens - 1 : 0),
      end_(pooling == Pooling::cls ? 1 : prompt_tokens),
      weight_(1.0 / (end_ - next_)),
      sum_(static_cast<size_t>(hidden)),
      embedding_(sum_.size()) {}

void HiddenPool::add(int32_t position, std::span<const float> hidden) {
  TESSERA_CHECK(position == next_ && next_ < end_ && hidden.size() == sum_.size(),
                "hidden states are pooled in order");
  ++next_;
  for (size_t i = 0; i < sum_.size(); ++i) {
    sum_[i] += double{hidden[i]};
  }
  if (complete()) {
    std::transform(sum_.begin(), sum_.end(), embedding_.begin(),
                   [this](double sum) { return static_cast<float>(sum * weight_); });
  }
}

}  // namespace tessera
