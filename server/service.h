#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "server/kv_overrides.h"
#include "server/text_stream.h"

namespace tessera {

class Metrics;

// A text, token ids, or the messages of a chat.
using Prompt = std::variant<std::string, std::vector<int32_t>, std::vector<ChatMessage>>;

// How a prompt becomes token ids; ids are taken as they are.
struct PromptOptions {
  bool add_bos = true;                // before a text, where the checkpoint wants it; chats never
  bool parse_special = false;         // special tokens in a text are meant as such
  bool add_generation_prompt = true;  // a chat ends where the assistant begins
};

inline constexpr std::chrono::seconds kLongestPin{86'400};  // EngineRequest::Cache::ttl: a day

// One generation as both front ends ask for it, whatever the wire said.
struct GenerateRequest {
  Prompt prompt;
  PromptOptions prompt_options;
  SamplingParams sampling;       // but for its seed
  std::optional<uint64_t> seed;  // none: a new one each time, but for `deterministic`
  // The same request gives the same text, whatever else runs: without a seed it has a fixed one.
  bool deterministic = false;
  std::optional<int32_t> max_tokens;  // none: as many as the context has room for; 0: prefill only
  std::vector<std::string> stop;      // never part of the text that is returned
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  bool keep_special = false;  // print special tokens
  int32_t priority = 0;
  KvOverrides kv;
  // The prefix cache: see EngineRequest.
  std::string cache_salt;
  EngineRequest::Cache cache;
  std::optional<KvFormat> cache_accept;
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

// One sequence of an accepted request.
struct Generation {
  RequestId id = 0;
  TextStream text;                                     // belongs to the connection's thread
  std::shared_ptr<std::atomic<bool>> stopped_by_text;  // see Service::stop
};

// An accepted request.
struct Accepted {
  std::vector<int32_t> prompt;          // as it was submitted
  std::vector<Generation> generations;  // one for each sink
};

// The one way in for HTTP and gRPC: template, tokenize, submit. Any thread may call any method.
class Service {
 public:
  struct Parts {
    std::string model_name;
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<ChatTemplate> chat_template;  // null: chat requests are refused by name
    std::unique_ptr<Engine> engine;               // started, or driven by step()
    std::unique_ptr<Metrics> metrics;
  };

  explicit Service(Parts parts);
  ~Service();

  // Generates one sequence for each of `sinks`, from seeds that follow one another. Events go to
  // the sinks on the engine's thread (see EventSink), after the metrics have seen them. Errors,
  // nothing runs then: as Engine::submit; InvalidArgument with OpenAI's code
  // "context_length_exceeded" and both numbers for a prompt that leaves the context no room for
  // one more token (if one was asked for), and for what the template refuses.
  absl::StatusOr<Accepted> generate(GenerateRequest request,
                                    std::vector<std::shared_ptr<EventSink>> sinks);

  void cancel(RequestId id);

  // Ends a generation whose text has come to a stop string: cancels what the engine still does for
  // it, and counts it as finished by `stop`.
  void stop(const Generation& generation);

  // The ids generate() would submit; ids stay as they are. Errors: InvalidArgument (what the
  // template refuses, no template).
  absl::StatusOr<std::vector<int32_t>> tokenize(const Prompt& prompt,
                                                const PromptOptions& options) const;

  // The text of ids, special tokens printed. Errors: InvalidArgument (ids out of range).
  absl::StatusOr<std::string> detokenize(std::span<const int32_t> ids) const;

  // Whether new requests should be sent here, as health checks ask: until set_not_ready(), after
  // which they are still taken, or drain(), after which they are refused.
  bool ready() const;
  void set_not_ready();
  void drain();

  // Prometheus text exposition of engine and front ends.
  std::string expose_metrics() const;

  const std::string& model_name() const;
  const Tokenizer& tokenizer() const;
  Engine& engine();
  const Engine& engine() const;
  const Metrics& metrics() const;

 private:
  struct State;

  TextStream make_text(const GenerateRequest& request) const;
  absl::Status refuse(absl::Status status);

  std::unique_ptr<State> state_;
};

}  // namespace tessera
