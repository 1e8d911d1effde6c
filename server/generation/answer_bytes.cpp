#include "server/generation/answer_bytes.h"

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

// Part of the most bytes of an answer that one without max_tokens takes: one of so many.
constexpr int64_t kUsualShare = 8;

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

int32_t asked_tokens(const GenerateRequest& request, std::size_t samples, int32_t room,
                     std::size_t max_bytes) {
  if (request.max_tokens.has_value()) return *request.max_tokens;
  if (request.streamed) return room;
  const int64_t fitting =
      static_cast<int64_t>(max_bytes) / kUsualShare / answer_bytes(request, samples, 0, 1);
  const int64_t most = std::max<int64_t>({fitting, request.sampling.min_tokens, 1});
  return static_cast<int32_t>(std::min<int64_t>(room, most));
}

}  // namespace tessera
