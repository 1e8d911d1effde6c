// /v1/responses/input_tokens: the tokens of a prompt that /v1/responses would make.
#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/endpoints/stored_responses.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/request/request_bytes.h"
#include "server/responses/response_store.h"
#include "server/responses/responses_printer.h"
#include "server/responses/responses_request.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"
#include "server/tenants/caller.h"

namespace tessera {

namespace {

// Counts on the work pool, as a job of the whole conversation's size: a short body may continue a
// long one.
class InputTokens final : public HttpAnswer {
 public:
  InputTokens(Service& service, std::shared_ptr<const Caller> caller, ResponsesRequest request,
              std::shared_ptr<const StoredResponse> previous, ByteBudget::Share share)
      : service_(service),
        caller_(std::move(caller)),
        request_(std::move(request)),
        previous_(std::move(previous)),
        share_(std::move(share)) {}

  std::optional<HttpReply> start() override {
    const absl::StatusOr<std::size_t> tokens = count();
    return tokens.ok() ? json_reply(print_input_tokens(*tokens)) : error_reply(tokens.status());
  }
  std::size_t start_bytes() const override {
    return 1 + message_bytes(messages()) + stored_bytes();
  }
  bool more(std::string& /*piece*/) override { return false; }

 private:
  const std::vector<ChatMessage>& messages() const {
    return std::get<Conversation>(request_.completion.prompts.front()).messages;
  }
  std::size_t stored_bytes() const {
    return previous_ == nullptr ? 0 : message_bytes(previous_->messages);
  }

  absl::StatusOr<std::size_t> count() {
    CompletionRequest& completion = request_.completion;
    auto& chat = std::get<Conversation>(completion.prompts.front()).messages;
    if (previous_ != nullptr) {
      chat.insert(chat.begin(), previous_->messages.begin(), previous_->messages.end());
    }
    if (!request_.instructions.empty()) {
      chat.insert(chat.begin(), {.role = "system", .content = request_.instructions});
    }
    TESSERA_RETURN_IF_ERROR(service_.prepare_chat(completion.tools, completion.each).status());
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<int32_t> ids,
        service_.prompts().tokenize(completion.prompts.front(), completion.each.prompt_options));
    service_.charge_text(*caller_, ids.size());
    return ids.size();
  }

  Service& service_;
  const std::shared_ptr<const Caller> caller_;
  ResponsesRequest request_;
  const std::shared_ptr<const StoredResponse> previous_;  // null: none
  const ByteBudget::Share share_;
};

absl::StatusOr<HttpResult> count_input(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(ResponsesRequest request, parse_responses_request(context.request.body));
  tell_warnings(context, request.completion.warnings);
  TESSERA_RETURN_IF_ERROR(check_model(context.service, request.completion.model));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const StoredResponse> previous,
                           find_previous(context, request.previous));
  const std::size_t stored = previous == nullptr ? 0 : message_bytes(previous->messages);
  TESSERA_ASSIGN_OR_RETURN(
      ByteBudget::Share share,
      take_bytes(context.service.budget(), 2 * (stored + context.request.body.size())));
  return HttpResult(std::make_unique<InputTokens>(
      context.service, context.caller, std::move(request), std::move(previous), std::move(share)));
}

}  // namespace

HttpResult answer_input_tokens(const EndpointContext& context) {
  return result_of(count_input(context));
}

}  // namespace tessera
