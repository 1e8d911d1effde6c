#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "eval/run/subject.h"

namespace tessera {

// Returns: a server with OpenAI's completions API, `echo` and `logprobs`: Tessera or another one.
// Requests carry token ids; at most `connections` of them run at a time. Forced tokens are sent as
// the end of an echoed prompt, as lm-evaluation-harness does. A policy that acts at a prompt's end
// therefore acts after them. Compared trials get log probabilities only.
// Errors: an invalid address, or a failed request for the server's model.
absl::StatusOr<std::unique_ptr<Subject>> make_http_subject(const std::string& url, int connections);

}  // namespace tessera
