#include "server/generation/truncate_prompt.h"

#include <algorithm>
#include <cstddef>

#include "server/request/generate_request.h"

namespace tessera {

void truncate_prompt(const GenerateRequest& request, int32_t context, std::optional<int32_t> bos_id,
                     std::vector<int32_t>& prompt) {
  if (!request.truncate_prompt) {
    return;
  }
  const int32_t answer = std::clamp(request.max_tokens.value_or(1), 0, context / 2);
  const auto kept = static_cast<std::size_t>(
      *request.truncate_prompt == kTruncateToFit ? context - answer : *request.truncate_prompt);
  if (prompt.size() > kept) {
    const bool bos = kept > 0 && prompt.front() == bos_id;
    const std::size_t dropped = prompt.size() - kept;
    prompt.erase(prompt.begin() + (bos ? 1 : 0),
                 prompt.begin() + static_cast<std::ptrdiff_t>(dropped) + (bos ? 1 : 0));
  }
}

}  // namespace tessera
