#include "server/generation/answer_end.h"

#include <algorithm>
#include <iterator>

namespace tessera {

AnswerEnd::AnswerEnd(const Service& service, const GenerateRequest& request)
    : max_tokens_(request.max_tokens) {
  const std::vector<int32_t>& ends = service.engine().config().eos_ids;
  std::copy_if(request.stop_ids.begin(), request.stop_ids.end(), std::back_inserter(stop_ids_),
               [&](int32_t id) {
                 return request.ignore_eos || std::find(ends.begin(), ends.end(), id) == ends.end();
               });
}

std::optional<int32_t> AnswerEnd::stop_token(const Finish& finish) const {
  const bool named = finish.stop_token && std::find(stop_ids_.begin(), stop_ids_.end(),
                                                    *finish.stop_token) != stop_ids_.end();
  return named ? finish.stop_token : std::nullopt;
}

bool AnswerEnd::context_full(const Finish& finish) const {
  return finish.reason == FinishReason::length &&
         (!max_tokens_ || finish.completion_tokens < *max_tokens_);
}

}  // namespace tessera
