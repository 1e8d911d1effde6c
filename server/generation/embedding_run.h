#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/generation/service.h"
#include "server/request/embedding_request.h"

namespace tessera {

// The embeddings of one request while they are computed. Each input is a request of its own to the
// engine. Few of them wait there at once, so that many inputs need no long queue. One thread at a
// time uses it.
class EmbeddingRun {
 public:
  // Tokenizes the inputs, takes room for the answer and submits the first inputs. Takes time in
  // proportion to the request. `notify` is called on the engine thread when inputs have ended. It
  // must not block, and may be called after this is destroyed.
  // Requires: `service` outlives this.
  // Errors: Unimplemented if the server has no pooling. InvalidArgument names the field: more
  // inputs than kMaxEmbeddingInputs, an empty or too long one, dimensions that the model does not
  // have, an answer that is too large. Unavailable if other answers leave it no room. Those of
  // take_adapter and Service::generate.
  static absl::StatusOr<std::unique_ptr<EmbeddingRun>> begin(Service& service,
                                                             EmbeddingRequest request,
                                                             std::function<void()> notify);
  ~EmbeddingRun();  // cancels inputs that still run
  EmbeddingRun(const EmbeddingRun&) = delete;
  EmbeddingRun& operator=(const EmbeddingRun&) = delete;

  // Takes the embeddings that are there, and submits further inputs. An input that the queue
  // refuses while others of the request run is submitted later.
  // Returns: true if all inputs have ended.
  // Errors: of the first input that failed.
  absl::StatusOr<bool> advance();

  // Returns: about how many bytes the printed answer has.
  std::size_t answer_bytes() const { return answer_bytes_; }

  // Returns: bytes of all embeddings.
  std::size_t embedding_bytes() const { return inputs_.size() * dimensions_ * sizeof(float); }

  // After advance() has returned true.
  std::size_t size() const { return inputs_.size(); }
  std::span<const float> embedding(std::size_t input) const;  // [dimensions]
  // Returns: the cosine of the angle between two embeddings, from -1 to 1.
  // Requires: the request was to normalize them.
  double cosine(std::size_t a, std::size_t b) const;
  bool base64() const { return base64_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }

 private:
  class Sink;
  struct Input {
    std::vector<int32_t> ids;
    std::shared_ptr<Sink> sink;  // null before it is submitted
    RequestId id = 0;
    bool ended = false;
  };

  EmbeddingRun(Service& service, EmbeddingRequest request, std::function<void()> notify);
  absl::Status take_room();
  absl::Status tokenize(std::vector<Prompt> prompts);
  absl::Status refuse_input(std::size_t input, std::string_view message,
                            std::string_view code = {}) const;
  absl::Status take(Input& input);
  absl::Status submit(Input& input);

  Service& service_;
  const GenerateRequest each_;
  const bool normalize_;
  const bool base64_;
  const std::size_t dimensions_;
  const InputFields fields_;
  const std::function<void()> notify_;
  std::size_t answer_bytes_ = 0;
  ByteBudget::Share room_;
  std::vector<Input> inputs_;
  std::size_t next_ = 0;     // the first input that was not submitted
  std::size_t first_ = 0;    // the first that has not ended
  std::size_t running_ = 0;  // inputs in the engine
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
};

}  // namespace tessera
