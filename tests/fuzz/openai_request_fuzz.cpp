// Input: a body of the HTTP API, parsed as each kind of request. Chats are also rendered by a
// template.
#include "base/check.h"
#include "nlohmann/json.hpp"
#include "server/anthropic/messages_request.h"
#include "server/base/error.h"
#include "server/openai/embeddings_request.h"
#include "server/openai/infill_request.h"
#include "server/openai/request.h"
#include "server/openai/score_request.h"
#include "server/responses/responses_request.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/chat_template.h"

namespace tessera {
namespace {

void expect_a_clients_error(const absl::Status& status) {
  if (status.ok()) return;
  TESSERA_CHECK(http_status(status) == 400, "a body that cannot be read is not a 400");
  const auto error = nlohmann::json::parse(print_error(status), nullptr, false);
  TESSERA_CHECK(error.is_object() && !error["error"]["message"].empty(), "no error object");
}

void expect_within_limits(const CompletionRequest& request) {
  TESSERA_CHECK(!request.prompts.empty(), "no prompt");
  TESSERA_CHECK(request.n >= 1, "no choice");
  const SamplingParams& sampling = request.each.sampling;
  TESSERA_CHECK(sampling.temperature >= 0 && sampling.top_p > 0 && sampling.top_p <= 1,
                "sampling out of range");
  TESSERA_CHECK(sampling.top_k >= 0, "top_k is negative");
}

const ChatTemplate& chatml() {
  static const auto parsed = ChatTemplate::parse(*builtin_chat_template("chatml"));
  return **parsed;
}

}  // namespace
}  // namespace tessera

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const std::string_view body = text_of(data, size);
  const auto completion = parse_completion_request(body);
  expect_a_clients_error(completion.status());
  if (completion.ok()) expect_within_limits(*completion);

  const auto chat = parse_chat_request(body);
  expect_a_clients_error(chat.status());
  if (chat.ok()) {
    expect_within_limits(*chat);
    const auto& conversation = std::get<Conversation>(chat->prompts.front());
    (void)chatml().render(conversation, {"<s>", "</s>", true, 0});
  }
  const auto messages = parse_messages_request(body);
  expect_a_clients_error(messages.status());
  if (messages.ok()) expect_within_limits(*messages);
  const auto infill = parse_infill_request(body);
  expect_a_clients_error(infill.status());
  if (infill.ok()) expect_within_limits(*infill);
  const auto responses = parse_responses_request(body);
  expect_a_clients_error(responses.status());
  if (responses.ok()) expect_within_limits(responses->completion);
  expect_a_clients_error(parse_count_tokens_request(body).status());
  expect_a_clients_error(parse_embeddings_request(body).status());
  expect_a_clients_error(parse_score_request(body).status());
  expect_a_clients_error(parse_rerank_request(body).status());
  expect_a_clients_error(parse_tokenize_request(body).status());
  expect_a_clients_error(parse_detokenize_request(body).status());
  return 0;
}
