#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "eval/run/subject.h"

namespace tessera {

// A server that speaks OpenAI's completions API with `echo` and `logprobs`: ours, or another. It is
// asked with token ids, `connections` requests at a time. Forced tokens are sent as the end of an
// echoed prompt, as lm-evaluation-harness does, so a policy that acts at a prompt's end does so
// after them; compared trials get log probabilities only.
// Errors: those of the address and of asking it for its model.
absl::StatusOr<std::unique_ptr<Subject>> make_http_subject(const std::string& url, int connections);

}  // namespace tessera
