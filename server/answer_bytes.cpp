#include "server/answer_bytes.h"

#include <algorithm>

namespace tessera {
namespace {

// Bytes of a token of the text: its id and log probability in a queue that doubles, its text.
constexpr int64_t kTokenBytes = 64;

// Bytes of a log probability with its token, in a queue, as text and as JSON. Measured: an answer
// of 2.7 million of them took 2.0 GB.
constexpr int64_t kLogprobBytes = 800;

// Limit of the generated part of a streamed sample: events that wait, and a piece that is printed.
constexpr int64_t kStreamBytes = 2 * kUnreadBytes;

int64_t of_tokens(int64_t tokens, const std::optional<int32_t>& top) {
  return tokens * (kTokenBytes + (top ? (1 + *top) * kLogprobBytes : 0));
}

}  // namespace

int64_t answer_bytes(const GenerateRequest& request, std::size_t samples, int64_t prompt_tokens,
                     int64_t max_tokens) {
  const SamplingParams& sampling = request.sampling;
  int64_t sample = of_tokens(max_tokens, sampling.top_logprobs);
  if (request.streamed) {
    sample = std::min(sample, kStreamBytes);
  }
  if (request.echo || request.prompt_ids || sampling.prompt_logprobs) {
    sample += of_tokens(prompt_tokens, sampling.prompt_logprobs);
  }
  return sample * static_cast<int64_t>(samples);
}

}  // namespace tessera
