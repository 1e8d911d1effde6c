// /tokenize and /detokenize.
#include <functional>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "server/generation/served_model.h"
#include "server/openai/request.h"
#include "server/openai/response.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

absl::StatusOr<HttpResult> tokenize(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const TokenizeRequest asked,
                           parse_tokenize_request(context.request.body));
  tell_warnings(context, asked.warnings);
  const Service& service = context.service;
  TESSERA_RETURN_IF_ERROR(check_model(service, asked.model));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokens_of(service, asked));
  service.charge_text(*context.caller, ids.size());
  const auto text_of = [&tokenizer = service.tokenizer()](int32_t id) {
    return tokenizer.token_bytes(id, /*keep_special=*/true);
  };
  const int32_t longest = service.engine().options().context;
  if (asked.pieces) {
    return HttpResult(json_reply(print_pieces(ids, longest, text_of)));
  }
  return HttpResult(json_reply(asked.token_texts ? print_tokens(ids, longest, text_of)
                                                 : print_tokens(ids, longest, {})));
}

absl::StatusOr<HttpResult> detokenize(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const DetokenizeRequest asked,
                           parse_detokenize_request(context.request.body));
  TESSERA_RETURN_IF_ERROR(check_model(context.service, asked.model));
  ByteBudget::Share room;  // until the text is printed; the connection takes room for the reply
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           context.service.prompts().detokenize(asked.tokens, &room));
  context.service.charge_text(*context.caller, asked.tokens.size());
  return HttpResult(json_reply(print_prompt(text)));
}

}  // namespace

HttpResult answer_tokenize(const EndpointContext& context) {
  return result_of(tokenize(context));
}

HttpResult answer_detokenize(const EndpointContext& context) {
  return result_of(detokenize(context));
}

}  // namespace tessera
