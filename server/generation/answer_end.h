#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "server/generation/service.h"

namespace tessera {

// The end of a request's sequences, in more detail than the engine's reason.
class AnswerEnd {
 public:
  AnswerEnd() = default;
  AnswerEnd(const Service& service, const GenerateRequest& request);

  // Returns: the token of stop_token_ids that ended a sequence; none at the model's own end.
  std::optional<int32_t> stop_token(const Finish& finish) const;

  // Returns: true if the context was full before max_tokens were generated.
  bool context_full(const Finish& finish) const;

 private:
  std::vector<int32_t> stop_ids_;  // without the model's ends of sequence
  std::optional<int32_t> max_tokens_;
};

}  // namespace tessera
