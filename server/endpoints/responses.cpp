// /v1/responses: OpenAI's dialect with stored responses.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/base/unique_id.h"
#include "server/endpoints/stored_responses.h"
#include "server/generation/prepare_request.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/request/model_sampling.h"
#include "server/request/request_bytes.h"
#include "server/request/request_limits.h"
#include "server/responses/old_turns.h"
#include "server/responses/response_store.h"
#include "server/responses/responses_printer.h"
#include "server/responses/responses_request.h"
#include "server/routes/completion_answer.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"
#include "server/tenants/caller.h"

namespace tessera {

namespace {

// A request that was parsed, with all that begins its answer.
struct Pending {
  Service& service;
  ResponseStore& responses;
  std::shared_ptr<Waker> waker;
  std::string owner;
  ResponsesRequest request;
  std::shared_ptr<const StoredResponse> previous;  // null: none
  std::shared_ptr<ByteBudget::Share> share;        // for the messages, until the answer is sent
};

// Sets the function that keeps the answer, or that only holds the share until it is sent.
void set_store(const Pending& pending, const std::vector<ChatMessage>& messages,
               ResponseHead& head) {
  if (!pending.request.store || pending.responses.max_bytes() == 0) {
    head.repeated["store"] = false;
    head.store = [share = pending.share](const ChatMessage& /*answer*/,
                                         const std::string& /*body*/) {};
    return;
  }
  head.store = [&store = pending.responses, owner = pending.owner, id = head.id,
                share = pending.share, messages](ChatMessage answer, const std::string& body) {
    StoredResponse stored{.messages = messages, .body = body};
    stored.messages.push_back(std::move(answer));
    store.put(owner, id, std::move(stored));
  };
}

// Takes time in proportion to the whole conversation.
absl::StatusOr<std::unique_ptr<HttpAnswer>> begin(Pending pending) {
  CompletionRequest& completion = pending.request.completion;
  std::vector<ChatMessage>& messages = std::get<Conversation>(completion.prompts.front()).messages;
  if (pending.previous != nullptr) {  // without its instructions
    const std::vector<ChatMessage>& before = pending.previous->messages;
    messages.insert(messages.begin(), before.begin(), before.end());
  }
  ResponseHead head{.id = "resp_" + unique_letters(32),
                    .model = answered_name(pending.service, completion.model),
                    .repeated = std::move(pending.request.repeated),
                    .tools = completion.tools};
  set_store(pending, messages, head);
  if (!pending.request.instructions.empty()) {
    messages.insert(messages.begin(), {.role = "system", .content = pending.request.instructions});
  }
  if (pending.request.truncate) {
    TESSERA_RETURN_IF_ERROR(
        drop_old_turns(pending.service, completion.each, completion.prompts.front()));
  }
  return answer_completion(pending.service, std::move(completion),
                           make_responses_printer(std::move(head)), std::move(pending.waker));
}

// The answer to a request that continues a stored conversation. A short body may stand for a long
// one, so it begins as a job of the conversation's size.
class ContinuedAnswer final : public HttpAnswer {
 public:
  ContinuedAnswer(Pending pending, std::size_t bytes)
      : pending_(std::move(pending)), bytes_(bytes) {}

  std::size_t start_bytes() const override {
    return answer_ == nullptr ? bytes_ : answer_->start_bytes();
  }
  std::optional<HttpReply> start() override {
    if (answer_ == nullptr) {
      auto begun = begin(*std::exchange(pending_, std::nullopt));
      if (!begun.ok()) {
        return error_reply(begun.status());
      }
      answer_ = *std::move(begun);
    }
    return answer_->start();
  }
  std::size_t more_bytes() const override { return answer_->more_bytes(); }
  void ping() override {
    if (answer_ != nullptr) answer_->ping();
  }
  bool more(std::string& piece) override { return answer_->more(piece); }

 private:
  std::optional<Pending> pending_;
  const std::size_t bytes_;
  std::unique_ptr<HttpAnswer> answer_;  // null: it has not begun
};

// The answer repeats the parameters that it is sampled with.
void tell_sampling(ResponsesRequest& request) {
  const GenerateRequest& each = request.completion.each;
  for (const auto& [name, value] : {std::pair("temperature", each.sampling.temperature),
                                    std::pair("top_p", each.sampling.top_p)}) {
    if (std::ranges::find(each.given, name) == each.given.end()) {
      request.repeated[name] = shortest_number(value);
    }
  }
}

absl::StatusOr<HttpResult> respond(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(ResponsesRequest request, parse_responses_request(context.request.body));
  tell_warnings(context, request.completion.warnings);
  TESSERA_RETURN_IF_ERROR(
      choose_model(context.service, request.completion.model, request.completion.each));
  TESSERA_RETURN_IF_ERROR(take_head(context, request.completion.each));
  tell_sampling(request);
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const StoredResponse> previous,
                           find_previous(context, request.previous));
  const auto& conversation = std::get<Conversation>(request.completion.prompts.front());
  const std::size_t bytes = message_bytes(conversation.messages) +
                            (previous == nullptr ? 0 : message_bytes(previous->messages));
  // The messages, and the fields that the answer repeats.
  TESSERA_ASSIGN_OR_RETURN(
      ByteBudget::Share share,
      take_bytes(context.service.budget(), 2 * bytes + 4 * context.request.body.size()));
  Pending pending{.service = context.service,
                  .responses = context.responses,
                  .waker = context.waker,
                  .owner = owner_of(context),
                  .request = std::move(request),
                  .previous = std::move(previous),
                  .share = std::make_shared<ByteBudget::Share>(std::move(share))};
  if (pending.previous != nullptr) {
    return HttpResult(std::make_unique<ContinuedAnswer>(std::move(pending), bytes));
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<HttpAnswer> answer, begin(std::move(pending)));
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
