#include "eval/run/acting.h"

#include <algorithm>

#include "kernels/kv/kv_format.h"

namespace tessera {

std::optional<int32_t> acted_from(const KvPolicy& policy, int32_t prompt_tokens,
                                  const KvUsage& usage) {
  if (policy.high == kKvF32 || (policy.high == kKvF16 && !policy.is_lossy())) {
    return 0;  // all differences begin with the first token
  }
  if (!(policy.high == kKvF16)) {
    return kKvGroup;
  }
  if (usage.low + usage.dropped <= 0) {
    return std::nullopt;
  }
  const int32_t first_evaluated = kKvGroup * (policy.recent + policy.sinks / kKvGroup + 1);
  return std::max(prompt_tokens, first_evaluated);
}

}  // namespace tessera
