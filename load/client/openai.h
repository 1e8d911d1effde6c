#pragma once

#include <memory>
#include <string>

#include "load/client/http_loop.h"

namespace tessera::load {

// Speaks the streaming OpenAI API: /v1/chat/completions for messages, /v1/completions for a prompt.
class OpenAiGenerator final : public Generator {
 public:
  // `loop` must outlive the generator.
  OpenAiGenerator(HttpLoop& loop, std::string model) : loop_(loop), model_(std::move(model)) {}

  void generate(const LoadRequest& request, const Fault& fault,
                std::shared_ptr<GenerationEvents> events) override;

 private:
  HttpLoop& loop_;
  std::string model_;
};

// Returns: the body of a streaming request.
std::string print_body(const LoadRequest& request, const std::string& model);

// Reads one streamed answer and passes its course on to `events`.
std::shared_ptr<HttpResponse> make_openai_reader(std::shared_ptr<GenerationEvents> events);

}  // namespace tessera::load
