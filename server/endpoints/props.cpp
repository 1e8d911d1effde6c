// /props and /tokenizer_info: the model's properties for clients of llama-server and of vLLM.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>

#include "server/base/commit.h"
#include "server/generation/service.h"
#include "server/json/print_json.h"
#include "server/request/model_sampling.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id.has_value() ? tokenizer.token_bytes(*id, /*keep_special=*/true) : std::string();
}

// Adds the defaults of sampling parameters that are numbers.
struct DefaultsPrinter {
  Json& out;

  template <class T>
  void operator()(const SpecialOption& /*option*/, const T& /*member*/) const {}
  template <class T>
  void operator()(const Option& option, const T& member) const {
    if constexpr (std::is_floating_point_v<T>) {
      out[std::string(option.name)] = shortest_number(member);
    } else if constexpr (std::is_arithmetic_v<T>) {
      out[std::string(option.name)] = member;
    }
  }
};

Json printed(const SamplingParams& params) {
  Json defaults = Json::object();
  visit_sampling(DefaultsPrinter{defaults}, params);
  return defaults;
}

// Special tokens by their ids, as tokenizer_config.json has them.
Json special_tokens(const Tokenizer& tokenizer) {
  Json tokens = Json::object();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) {
      tokens[fmt::format("{}", id)] = {{"content", tokenizer.token_bytes(id, true)},
                                       {"special", true}};
    }
  }
  return tokens;
}

}  // namespace

HttpResult answer_props(const EndpointContext& context) {
  const Service& service = context.service;
  const Tokenizer& tokenizer = service.tokenizer();
  const EngineOptions& options = service.engine().options();
  const Json json = {{"default_generation_settings",
                      {{"n_ctx", options.context}, {"params", printed(service.sampling())}}},
                     {"total_slots", options.max_sequences},
                     {"model_alias", service.model_name()},
                     {"modalities", {{"vision", false}, {"audio", false}}},
                     {"chat_template", service.chat_template_source()},
                     {"bos_token", text_of(tokenizer, tokenizer.bos_id())},
                     {"eos_token", text_of(tokenizer, tokenizer.eos_id())},
                     {"build_info", fmt::format("tessera {} {}", TESSERA_VERSION, commit())}};
  return json_reply(print_json(json));
}

HttpResult answer_tokenizer_info(const EndpointContext& context) {
  const Service& service = context.service;
  const Tokenizer& tokenizer = service.tokenizer();
  const Json json = {{"vocab_size", tokenizer.vocab_size()},
                     {"model_max_length", service.engine().options().context},
                     {"bos_token", text_of(tokenizer, tokenizer.bos_id())},
                     {"eos_token", text_of(tokenizer, tokenizer.eos_id())},
                     {"add_bos_token", !tokenizer.encode({}, /*add_bos=*/true).empty()},
                     {"added_tokens_decoder", special_tokens(tokenizer)},
                     {"chat_template", service.chat_template_source()}};
  return json_reply(print_json(json));
}

}  // namespace tessera
