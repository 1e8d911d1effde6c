// /v1/responses: OpenAI's dialect with stored responses.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/status_macros.h"
#include "server/caller.h"
#include "server/http/completion_answer.h"
#include "server/http/replies.h"
#include "server/http/route_table.h"
#include "server/openai/error.h"
#include "server/request_limits.h"
#include "server/responses/response_store.h"
#include "server/responses/responses_printer.h"
#include "server/responses/responses_request.h"
#include "server/served_model.h"
#include "server/service.h"
#include "server/unique_id.h"

namespace tessera {

namespace {

using Messages = std::vector<ChatMessage>;

// Owner of responses: a tenant, or one key.
const std::string& owner_of(const EndpointContext& context) {
  return context.caller->turn_name();
}

// `id`: as the client sent it.
std::string no_such_response(std::string_view id) {
  return fmt::format("there is no stored response '{}' (any more)", id.substr(0, kMaxRequestId));
}

// Puts the messages of the stored response, without its instructions, before the input.
absl::Status continue_response(const EndpointContext& context, const ResponsesRequest& request,
                               Messages& messages) {
  if (request.previous.empty()) {
    return absl::OkStatus();
  }
  const auto stored = context.responses.find(owner_of(context), request.previous);
  if (stored == nullptr) {
    return invalid_field("previous_response_id", no_such_response(request.previous),
                         "previous_response_not_found");
  }
  messages.insert(messages.begin(), stored->messages.begin(), stored->messages.end());
  return absl::OkStatus();
}

// Drops the oldest turns until the prompt leaves room for the answer: for max_output_tokens, but at
// most half of the context, or for an eighth of it. The first system messages and the last turn
// stay. Tokenizes the prompt as often as log2 of its turns.
absl::Status truncate(const Service& service, const GenerateRequest& each, Prompt& prompt) {
  const Messages all = std::get<Conversation>(prompt).messages;
  const int64_t context = service.engine().options().context;
  const int64_t room =
      each.max_tokens ? std::min<int64_t>(*each.max_tokens, context / 2) : context / 8;
  const auto is_system = [](const ChatMessage& message) {
    return message.role == "system" || message.role == "developer";
  };
  const auto begin = std::find_if_not(all.begin(), all.end(), is_system);
  std::vector<Messages::const_iterator> turns;  // where one may begin
  for (auto at = begin; at != all.end(); ++at) {
    if (at == begin || at->role == "user") {
      turns.push_back(at);
    }
  }
  const auto keep_from = [&](std::size_t turn) {
    Messages kept(all.begin(), begin);
    kept.insert(kept.end(), turns[turn], all.end());
    std::get<Conversation>(prompt).messages = std::move(kept);
  };
  const auto fits = [&]() -> absl::StatusOr<bool> {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                             service.tokenize(prompt, each.prompt_options));
    return static_cast<int64_t>(ids.size()) + room <= context;
  };
  TESSERA_ASSIGN_OR_RETURN(const bool all_fit, fits());
  if (all_fit || turns.size() < 2) {
    return absl::OkStatus();
  }
  std::size_t least = 1;
  std::size_t most = turns.size() - 1;
  while (least < most) {
    const std::size_t middle = least + (most - least) / 2;
    keep_from(middle);
    TESSERA_ASSIGN_OR_RETURN(const bool enough, fits());
    (enough ? most : least) = enough ? middle : middle + 1;
  }
  keep_from(least);
  return absl::OkStatus();
}

absl::StatusOr<HttpResult> respond(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(ResponsesRequest request, parse_responses_request(context.request.body));
  CompletionRequest& completion = request.completion;
  tell_warnings(context, completion.warnings);
  TESSERA_RETURN_IF_ERROR(check_model(context.service, completion.model));
  TESSERA_RETURN_IF_ERROR(take_head(context, completion.each));
  Conversation& conversation = std::get<Conversation>(completion.prompts.front());
  TESSERA_RETURN_IF_ERROR(continue_response(context, request, conversation.messages));
  // Held by the answer until it is sent: the messages, and the fields that it repeats.
  TESSERA_ASSIGN_OR_RETURN(
      ByteBudget::Share share,
      take_bytes(context.service.budget(),
                 2 * message_bytes(conversation.messages) + 4 * context.request.body.size()));
  ResponseHead head{.id = "resp_" + unique_letters(32),
                    .model = answered_name(context.service, completion.model),
                    .repeated = std::move(request.repeated),
                    .tools = completion.tools};
  const auto held = std::make_shared<ByteBudget::Share>(std::move(share));
  if (request.store && context.responses.max_bytes() > 0) {
    head.store = [&store = context.responses, owner = owner_of(context), id = head.id, held,
                  messages = conversation.messages](ChatMessage answer, const std::string& body) {
      StoredResponse stored{.messages = messages, .body = body};
      stored.messages.push_back(std::move(answer));
      store.put(owner, id, std::move(stored));
    };
  } else {
    head.repeated["store"] = false;
    head.store = [held](const ChatMessage& /*answer*/, const std::string& /*body*/) {};
  }
  if (!request.instructions.empty()) {
    conversation.messages.insert(conversation.messages.begin(),
                                 {.role = "system", .content = request.instructions});
  }
  if (request.truncate) {
    TESSERA_RETURN_IF_ERROR(truncate(context.service, completion.each, completion.prompts.front()));
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpAnswer> answer,
      answer_completion(context.service, std::move(completion),
                        make_responses_printer(std::move(head)), context.waker));
  return HttpResult(std::move(answer));
}

// A stored body, which counts among the answers until the client has it.
class StoredAnswer final : public HttpAnswer {
 public:
  StoredAnswer(std::shared_ptr<const StoredResponse> stored, ByteBudget::Share share)
      : stored_(std::move(stored)), share_(std::move(share)) {}

  std::optional<HttpReply> start() override { return json_reply(stored_->body); }
  std::size_t start_bytes() const override { return stored_->body.size(); }
  bool more(std::string& /*piece*/) override { return false; }

 private:
  const std::shared_ptr<const StoredResponse> stored_;
  const ByteBudget::Share share_;
};

absl::StatusOr<HttpResult> fetch(const EndpointContext& context) {
  auto stored = context.responses.find(owner_of(context), std::string(context.rest));
  if (stored == nullptr) {
    return absl::NotFoundError(no_such_response(context.rest));
  }
  TESSERA_ASSIGN_OR_RETURN(ByteBudget::Share share,
                           take_bytes(context.service.budget(), 2 * stored->body.size()));
  return HttpResult(std::make_unique<StoredAnswer>(std::move(stored), std::move(share)));
}

}  // namespace

HttpResult answer_responses(const EndpointContext& context) {
  return result_of(respond(context));
}

HttpResult answer_stored_response(const EndpointContext& context) {
  return result_of(fetch(context));
}

HttpResult answer_delete_response(const EndpointContext& context) {
  if (!context.responses.erase(owner_of(context), std::string(context.rest))) {
    return error_reply(absl::NotFoundError(no_such_response(context.rest)));
  }
  return json_reply(print_deleted_response(std::string(context.rest)));
}

}  // namespace tessera
