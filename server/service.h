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
#include "server/grammar/grammar_spec.h"
#include "server/grammar/grammar_store.h"
#include "server/kv_overrides.h"
#include "server/text_stream.h"

namespace tessera {

class Metrics;

// A text, token ids, or the messages of a chat.
using Prompt = std::variant<std::string, std::vector<int32_t>, std::vector<ChatMessage>>;

// Conversion of a prompt to token ids. A prompt of token ids is not changed.
struct PromptOptions {
  bool add_bos = true;                // for a text, if the checkpoint asks for it; never for a chat
  bool parse_special = false;         // parses special tokens in a text
  bool add_generation_prompt = true;  // a chat ends with the start of the assistant's turn
};

// One generation request, the same for both front ends: the engine's options without the seed, and
// the fields from which the service computes the rest of an EngineRequest.
struct GenerateRequest : RequestOptions {
  Prompt prompt;
  PromptOptions prompt_options;
  std::optional<uint64_t> seed;  // none: a new one each time; with `deterministic`, a fixed one
  std::optional<int32_t> max_tokens;  // none: as many as the context has room for; 0: prefill only
  std::vector<std::string> stop;      // never part of the returned text
  bool keep_special = false;          // prints special tokens
  KvOverrides kv;
  // The grammar that the text must match, and its compiled form, which Service::compile makes.
  std::optional<GrammarSpec> grammar;
  std::shared_ptr<const TokenGrammar> compiled_grammar;
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

// One sequence of an accepted request.
struct Generation {
  RequestId id = 0;
  TextStream text;                                     // used on the connection's thread
  std::shared_ptr<std::atomic<bool>> stopped_by_text;  // see Service::stop
};

// An accepted request.
struct Accepted {
  std::vector<int32_t> prompt;          // token ids as submitted
  std::vector<Generation> generations;  // one for each sink
};

// Common path of HTTP and gRPC to the engine: applies the template, tokenizes, submits.
// Thread-safe.
class Service {
 public:
  struct Parts {
    std::string model_name;
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<ChatTemplate> chat_template;  // null: chat requests are refused
    std::unique_ptr<Engine> engine;               // started, or driven by step()
    std::unique_ptr<Metrics> metrics;
    std::unique_ptr<GrammarCompiler> grammar_compiler = nullptr;  // null: grammars are refused
  };

  explicit Service(Parts parts);
  ~Service();

  // Compiles a grammar, as GrammarStore::get. Errors name the spec's field.
  void compile(const GrammarSpec& spec, GrammarStore::Done done);

  // Generates one sequence for each of `sinks`, with consecutive seeds. Events go to the sinks on
  // the engine thread (see EventSink), after the metrics have recorded them.
  // Requires: a request with a grammar has it compiled.
  // Errors, with no sequence running: as Engine::submit. InvalidArgument with OpenAI's code
  // "context_length_exceeded" and both numbers, if the prompt leaves no room for one more token (if
  // one was requested). InvalidArgument for messages that the template refuses.
  absl::StatusOr<Accepted> generate(GenerateRequest request,
                                    std::vector<std::shared_ptr<EventSink>> sinks);

  void cancel(RequestId id);

  // Ends a generation at a stop string in its text: cancels it in the engine, and counts it as
  // finished by `stop`.
  void stop(const Generation& generation);

  // Returns: the ids that generate() would submit. A prompt of ids is returned unchanged.
  // Errors: InvalidArgument (messages that the template refuses, no template).
  absl::StatusOr<std::vector<int32_t>> tokenize(const Prompt& prompt,
                                                const PromptOptions& options) const;

  // Returns: the text of ids, including special tokens.
  // Errors: InvalidArgument (ids out of range).
  absl::StatusOr<std::string> detokenize(std::span<const int32_t> ids) const;

  // Readiness for health checks: true if new requests should be sent here. After set_not_ready() it
  // is false, but requests are still accepted. After drain() it is false, and requests are refused.
  bool ready() const;
  void set_not_ready();
  void drain();

  // Returns: Prometheus text exposition of engine and front ends.
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
