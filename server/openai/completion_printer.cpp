#include "server/openai/completion_printer.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <utility>

#include "server/base/commit.h"
#include "server/base/error.h"
#include "server/base/unique_id.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/json/print_json.h"
#include "server/openai/response.h"

namespace tessera {
namespace {

class CompletionPrinter final : public AnswerPrinter {
 public:
  CompletionPrinter(CompletionHead head, bool continuous_usage)
      : head_(std::move(head)), continuous_usage_(continuous_usage) {}

  std::string whole(std::span<const ChoiceText> choices, const Usage& usage) override {
    return print_completion(head_, choices, usage);
  }
  std::string error(const absl::Status& status) override { return print_error(status); }

  std::string begin(const Usage& /*usage*/) override { return {}; }
  std::string part(const ChoiceText& part, const Usage& usage) override {
    return print_event(head_, part, continuous_usage_ ? std::optional(usage) : std::nullopt);
  }
  std::string end(const Usage& usage) override {
    return (head_.usage ? print_usage_event(head_, usage) : "") + std::string(kDoneEvent);
  }
  std::string failure(const absl::Status& status) override {
    return print_error_event(status) + std::string(kDoneEvent);
  }
  bool shows_usage() const override { return head_.usage; }

 private:
  const CompletionHead head_;
  const bool continuous_usage_;
};

// Returns: OpenAI's system_fingerprint. If it changes, the same seed may give another text.
std::string fingerprint_of(const Service& service) {
  const std::string parts = fmt::format("{} {} {} {}", TESSERA_VERSION, commit(),
                                        service.model_name(), service.engine().options().kv.name);
  return fmt::format("fp_{:016x}", std::hash<std::string>()(parts));
}

}  // namespace

std::unique_ptr<AnswerPrinter> make_completion_printer(const Service& service,
                                                       const CompletionRequest& request) {
  CompletionHead head;
  head.chat = request.chat;
  head.model = answered_name(service, request.model);
  head.fingerprint = fingerprint_of(service);
  head.legacy_calls = request.legacy_calls;
  head.token_ids = request.token_ids;
  head.id = fmt::format(
      "{}{}", request.chat ? "chatcmpl-" : "cmpl-",
      request.request_id.empty() ? fmt::format("{:016x}", unique_number()) : request.request_id);
  head.created = unix_seconds();
  head.logprobs = request.logprobs;
  head.prompt_logprobs = request.prompt_logprobs;
  head.usage = request.include_usage;
  return std::make_unique<CompletionPrinter>(std::move(head), request.continuous_usage);
}

}  // namespace tessera
