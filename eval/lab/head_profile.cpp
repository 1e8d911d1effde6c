#include "eval/lab/head_profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "eval/lab/attention.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {
namespace {

constexpr int32_t kAround = 4;
constexpr int32_t kRepetitions = 4;
constexpr uint64_t kSeed = 11;

float sum_of(std::span<const float> row, int32_t first, int32_t last) {
  const auto begin = static_cast<size_t>(std::max(first, 0));
  const auto end = std::min(row.size(), static_cast<size_t>(last + 1));
  return begin < end ? std::reduce(row.begin() + static_cast<int64_t>(begin),
                                   row.begin() + static_cast<int64_t>(end))
                     : 0;
}

}  // namespace

HeadProfile profile_of(const Prompt& prompt, int32_t period) {
  const Shape& shape = prompt.shape;
  const auto heads = static_cast<size_t>(shape.layers * shape.heads);
  HeadProfile profile{std::vector<float>(heads), std::vector<float>(heads),
                      std::vector<float>(heads)};
  const auto share = 1 / static_cast<float>(std::max(1, prompt.size() - period));
  for_each_head(prompt, [&](int32_t layer, int32_t kv_head) {
    for (int32_t i = 0; i < shape.group(); ++i) {
      const int32_t head = kv_head * shape.group() + i;
      const auto place = static_cast<size_t>(layer * shape.heads + head);
      for_each_attention_row(
          prompt, layer, head, period, prompt.size(),
          [&](int32_t position, std::span<const float> row) {
            for (int32_t same = position - period; same >= 0; same -= period) {
              profile.echo[place] += share * sum_of(row, same, same);
              profile.induction[place] += share * sum_of(row, same + 1, same + 1);
              profile.around[place] += share * sum_of(row, same + 1 - kAround, same + 1 + kAround);
            }
          });
    }
  });
  return profile;
}

HeadProfile measure_heads(Model& model, int32_t period) {
  period = std::max(1, std::min(period, model.context() / kRepetitions));
  std::mt19937_64 random(kSeed);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < period; ++i) {
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(model.config().vocab)));
  }
  for (int32_t i = period; i < kRepetitions * period; ++i) {
    tokens.push_back(tokens[static_cast<size_t>(i - period)]);
  }
  return profile_of(*model.prompt(tokens), period);
}

std::vector<bool> best_heads(const std::vector<float>& scores, double share) {
  const auto count = static_cast<int32_t>(std::lround(share * static_cast<double>(scores.size())));
  std::vector<bool> best(scores.size());
  for (const int32_t head : largest(scores, std::max(1, count))) {
    best[static_cast<size_t>(head)] = true;
  }
  return best;
}

}  // namespace tessera::lab
