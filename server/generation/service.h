#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/adapters/adapter_store.h"
#include "server/base/byte_budget.h"
#include "server/generation/prepare_chat.h"
#include "server/generation/prompt_encoder.h"
#include "server/generation/text_stream.h"
#include "server/grammar/grammar_store.h"
#include "server/request/generate_request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tessera {

struct HeldMemory;
class Metrics;

// One sequence of an accepted request.
struct Generation {
  RequestId id = 0;
  TextStream text;                                     // used by the answer's reader
  std::shared_ptr<std::atomic<bool>> stopped_by_text;  // see Service::stop
};

// An accepted request.
struct Accepted {
  std::vector<int32_t> prompt;          // token ids as submitted
  bool open_thought = false;            // the prompt ends inside a model's thought
  std::vector<KeptPrefix> kept;         // before the marks of a chat, with the times asked for
  std::vector<Generation> generations;  // one for each sink
  ByteBudget::Share room;               // for the answer; held until the client has it
};

// Common path of HTTP and gRPC to the engine: applies the template, tokenizes, submits.
// Thread-safe.
class Service {
 public:
  struct Parts {
    std::string model_name;
    std::vector<std::string> aliases{};  // further names by which requests may ask; "*": any
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<ChatTemplate> chat_template;  // null: chat requests are refused
    std::string chat_template_source{};           // in Jinja; empty without one
    ChatFormat chat_format{};
    std::unique_ptr<Engine> engine;  // started, or driven by step()
    std::unique_ptr<Metrics> metrics;
    ByteBudget* budget = nullptr;                // of answers; not owned. Null: unbounded
    std::size_t max_answer_bytes = 256U << 20U;  // of one request; see also TextRoom
    std::unique_ptr<GrammarCompiler> grammar_compiler = nullptr;  // null: grammars are refused
    std::size_t grammar_memory = 128U << 20U;       // of the store, and of the compiler's masks
    EngineLoad engine_load{};                       // paces the grammar compiler (PacedWork)
    std::chrono::milliseconds queue_timeout{0};     // of requests without one; 0: none
    int64_t memory_limit = 0;                       // see MemoryGuard
    std::optional<Pooling> pooling = std::nullopt;  // of requests without one; none: no embeddings
    SamplingParams sampling{};                      // of requests that leave them out
    std::unique_ptr<AdapterStore> adapters = nullptr;  // null: there are none
  };

  explicit Service(Parts parts);
  ~Service();

  // Admits a request by its head, before its body is read or parsed. It counts in its tenant's rate
  // of requests, even if it is refused later.
  // Errors: ResourceExhausted with the time of a retry (retry_after.h) if a rate is used up, or if
  // memory is short.
  absl::Status admit(const Caller& caller);

  // Compiles the grammar of a request, as GrammarStore::get. Errors name the spec's field.
  // Errors, before the work: those of generate() for the caller's limits.
  void compile(GenerateRequest& request, GrammarStore::Done done);

  // As prepare_chat(), for the served model.
  absl::StatusOr<AnswerNotation> prepare_chat(const ToolUse& use, GenerateRequest& request) const;

  // Generates one sequence for each of `sinks`, with consecutive seeds. Events go to the sinks on
  // the engine thread (see EventSink), after the metrics have recorded them.
  // The caller's limits apply: range of priorities, pins, rates, share and salt of its tenant.
  // Requires: a request with a grammar has it compiled; one with an adapter has it in memory.
  // Errors, with no sequence running: as Engine::submit. ResourceExhausted with the time of a retry
  // (retry_after.h) if a rate is used up, or if memory is short. InvalidArgument for a priority or
  // a pin beyond the caller's limits. InvalidArgument with OpenAI's code
  // "context_length_exceeded" and both numbers, if the prompt leaves no room for one more token (if
  // one was requested). InvalidArgument for messages that the template refuses, and for an answer
  // that may become too large. Unavailable if the answers that wait leave no room for another.
  absl::StatusOr<Accepted> generate(GenerateRequest request,
                                    std::vector<std::shared_ptr<EventSink>> sinks);

  void cancel(RequestId id);

  // Ends a generation at a stop string in its text: cancels it in the engine, and counts it as
  // finished by `stop`.
  void stop(const Generation& generation);

  // Counts the tokens of a text that is converted and not computed: a tenth of them in the tenant's
  // rate of tokens.
  void charge_text(const Caller& caller, std::size_t tokens) const;

  // Returns: the sampling parameters of requests that leave them out
  // (server/request/model_sampling.h).
  const SamplingParams& sampling() const { return sampling_; }

  // Readiness for health checks: true if new requests should be sent here. After set_not_ready() it
  // is false, but requests are still accepted. After drain() it is false, and requests are refused.
  bool ready() const;
  void set_not_ready();
  void drain();

  // Watches a part of memory: it is shown in the metrics, and shrinks above --max-memory.
  void watch_memory(HeldMemory part);

  // Returns: Prometheus text exposition of engine and front ends.
  std::string expose_metrics() const;

  const std::string& model_name() const;
  std::span<const std::string> aliases() const;     // without "*"
  bool has_any_name() const;                        // the aliases have "*"
  const std::string& chat_template_source() const;  // empty without one
  const Tokenizer& tokenizer() const;
  std::optional<Pooling> pooling() const;  // of embeddings; none: the server makes none
  const PromptEncoder& prompts() const;
  Engine& engine();
  const Engine& engine() const;
  const Metrics& metrics() const;
  std::size_t max_answer_bytes() const;
  ByteBudget* budget() const;      // of answers; null: unbounded
  AdapterStore* adapters() const;  // null: the server has none

 private:
  struct State;

  absl::StatusOr<ByteBudget::Share> take_room(const GenerateRequest& request, std::size_t samples,
                                              int64_t prompt_tokens, int64_t max_tokens) const;

  TextStream make_text(const GenerateRequest& request) const;
  absl::StatusOr<EngineRequest> engine_request(const GenerateRequest& request,
                                               std::vector<int32_t> prompt) const;
  absl::Status count_request(const Caller& caller);
  absl::Status precheck(const GenerateRequest& request);
  absl::StatusOr<Accepted> submit(GenerateRequest request, PromptEncoder::Encoded encoded,
                                  std::vector<std::shared_ptr<EventSink>> sinks,
                                  std::chrono::steady_clock::time_point received);
  absl::Status refuse(absl::Status status);

  const SamplingParams sampling_;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
