#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
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

// One generation as both front ends ask for it, whatever the wire said.
struct GenerateRequest {
  Prompt prompt;
  PromptOptions prompt_options;
  SamplingParams sampling;
  int32_t max_tokens = 0;         // 0: as many as the context has room for
  std::vector<std::string> stop;  // never part of the text that is returned
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  bool keep_special = false;  // print special tokens
  int32_t priority = 0;
};

// An accepted generation.
struct Generation {
  RequestId id = 0;
  int32_t prompt_tokens = 0;
  TextStream text;                                     // belongs to the connection's thread
  std::shared_ptr<std::atomic<bool>> stopped_by_text;  // see Service::stop
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

  // Events go to `sink` on the engine's thread (see EventSink), after the metrics have seen them.
  // Errors as Engine::submit, and InvalidArgument for what the template refuses.
  absl::StatusOr<Generation> generate(GenerateRequest request, std::shared_ptr<EventSink> sink);

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
  std::unique_ptr<State> state_;
};

}  // namespace tessera
