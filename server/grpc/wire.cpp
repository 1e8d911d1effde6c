#include "server/grpc/wire.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/adapters/adapter_store.h"
#include "server/grammar/make_spec.h"
#include "server/grpc/chat_message.h"
#include "server/grpc/kv_options.h"
#include "server/grpc/request_options.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

// Reads the prompt, and of a chat all that it says of its answer.
absl::Status read_prompt(const v1::GenerateRequest& message, CompletionRequest& out) {
  GenerateRequest& request = out.each;
  switch (message.prompt_case()) {
    case v1::GenerateRequest::kText:
      out.prompts.emplace_back(message.text());
      return absl::OkStatus();
    case v1::GenerateRequest::kTokens:
      out.prompts.emplace_back(
          std::vector<int32_t>(message.tokens().ids().begin(), message.tokens().ids().end()));
      return absl::OkStatus();
    case v1::GenerateRequest::kChat: {
      TESSERA_ASSIGN_OR_RETURN(ChatCall chat, parse_chat(message.chat()));
      out.prompts.emplace_back(std::move(chat.conversation));
      request.prompt_options.add_generation_prompt = chat.add_generation_prompt;
      out.chat = true;
      out.tools = std::move(chat.tools);
      out.reasoning = chat.reasoning;
      return message.echo() ? absl::InvalidArgumentError("echo is not available for a chat")
                            : absl::OkStatus();
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("prompt: one of text, tokens and chat is required");
}

absl::Status read_counts(const v1::GenerateRequest& message, CompletionRequest& out) {
  out.n = message.has_n() ? message.n() : 1;
  TESSERA_RETURN_IF_ERROR(check_option({"n", kSampleCount}, out.n));
  out.best_of = message.has_best_of() ? message.best_of() : out.n;
  TESSERA_RETURN_IF_ERROR(check_option({"best_of", kSampleCount}, out.best_of));
  if (out.best_of < out.n) {
    return absl::InvalidArgumentError(
        fmt::format("best_of is {}, less than n, which is {}", out.best_of, out.n));
  }
  std::optional<int32_t>& reported = out.each.sampling.top_logprobs;
  out.logprobs = reported;
  out.prompt_logprobs = out.each.sampling.prompt_logprobs;
  if (out.best_of > out.n && !reported) {
    reported = 0;  // needed to choose the most likely sequences
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<GrammarSpec>> parse_grammar(const v1::Grammar& message) {
  using Kind = GrammarSpec::Kind;
  switch (message.kind_case()) {
    case v1::Grammar::kJsonObject:
      return message.json_object()
                 ? std::optional(GrammarSpec{Kind::json, "object", "grammar.json_object"})
                 : std::nullopt;
    case v1::Grammar::kJsonSchema:
      return schema_text_spec(message.json_schema(), "grammar.json_schema");
    case v1::Grammar::kRegex:
      return notation_spec(Kind::regex, message.regex(), "grammar.regex");
    case v1::Grammar::kGbnf:
      return notation_spec(Kind::gbnf, message.gbnf(), "grammar.gbnf");
    case v1::Grammar::kChoice:
      return choice_spec(std::vector<std::string>(message.choice().texts().begin(),
                                                  message.choice().texts().end()),
                         "grammar.choice");
    case v1::Grammar::kStructuralTag:
      return notation_spec(Kind::structural_tag, message.structural_tag(),
                           "grammar.structural_tag");
    case v1::Grammar::KIND_NOT_SET:
      break;
  }
  return std::nullopt;
}

}  // namespace

grpc::Status to_grpc(const absl::Status& status) {
  // Both libraries use the same numbers for the codes.
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status no_message() {
  return absl::InternalError("the call has no message that can be read as one of its type");
}

absl::StatusOr<CompletionRequest> parse_generate_request(const v1::GenerateRequest& message) {
  CompletionRequest call;
  call.token_ids = true;
  call.stream = true;
  GenerateRequest& request = call.each;
  TESSERA_RETURN_IF_ERROR(read_prompt(message, call));
  TESSERA_RETURN_IF_ERROR(read_options(message, request));
  request.stop = {message.stop().begin(), message.stop().end()};
  if (const std::optional<std::string> error = stop_error(request.stop, kStopLimits)) {
    return absl::InvalidArgumentError(fmt::format("stop {}", *error));
  }
  constexpr auto kRandom = static_cast<uint64_t>(kRandomSeed);
  if (message.sampling().has_seed() && message.sampling().seed() != kRandom) {
    request.seed = message.sampling().seed();
  }
  if (message.has_max_tokens()) {
    TESSERA_RETURN_IF_ERROR(check_option({"max_tokens", kTokenCount}, message.max_tokens()));
    request.max_tokens = message.max_tokens();
  }
  TESSERA_RETURN_IF_ERROR(read_counts(message, call));
  call.model = message.model();
  request.echo = message.echo();
  request.prompt_options.add_bos =
      !message.has_add_special_tokens() || message.add_special_tokens();
  request.prompt_options.parse_special = message.parse_special_tokens();
  request.keep_special = message.keep_special_tokens();
  request.include_stop = message.include_stop();
  if (message.has_truncate_prompt_tokens()) {
    request.truncate_prompt = message.truncate_prompt_tokens();
    if (*request.truncate_prompt != kTruncateToFit) {
      TESSERA_RETURN_IF_ERROR(
          check_option({"truncate_prompt_tokens", kTruncatedPrompt}, *request.truncate_prompt));
    }
  }
  request.prompt_ids = message.return_prompt_tokens() && !call.prompt_logprobs;
  request.streamed = call.best_of == call.n;
  request.kv = parse_kv_options(message.kv());
  absl::StatusOr<std::optional<GrammarSpec>> grammar = parse_grammar(message.grammar());
  if (!grammar.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("grammar {}", std::string(grammar.status().message())));
  }
  request.grammar = *std::move(grammar);
  if (request.grammar && request.ignore_eos) {
    return absl::InvalidArgumentError(
        "ignore_eos cannot be combined with a grammar, which ends the text");
  }
  return call;
}

absl::StatusOr<TokenizeCall> parse_tokenize_request(const v1::TokenizeRequest& message) {
  TokenizeCall call;
  call.options.add_bos = !message.has_add_special_tokens() || message.add_special_tokens();
  call.options.parse_special = message.parse_special_tokens();
  call.texts = message.return_texts();
  switch (message.prompt_case()) {
    case v1::TokenizeRequest::kText:
      call.prompt = message.text();
      return call;
    case v1::TokenizeRequest::kChat: {
      TESSERA_ASSIGN_OR_RETURN(ChatCall chat, parse_chat(message.chat()));
      call.prompt = std::move(chat.conversation);
      call.options.add_generation_prompt = chat.add_generation_prompt;
      return call;
    }
    case v1::TokenizeRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("prompt: one of text and chat is required");
}

v1::GetModelInfoResponse model_info(const Service& service) {
  const ModelConfig& config = service.engine().config();
  v1::GetModelInfoResponse message;
  message.set_name(service.model_name());
  message.mutable_aliases()->Assign(service.aliases().begin(), service.aliases().end());
  if (const AdapterStore* const adapters = service.adapters()) {
    for (std::string& name : adapters->names()) {
      message.add_adapters(std::move(name));
    }
  }
  message.set_architecture(config.architecture);
  message.set_context(service.engine().options().context);
  message.set_vocab_size(config.vocab);
  message.set_layers(config.layers);
  message.set_hidden_size(config.hidden);
  message.set_query_heads(config.heads);
  message.set_kv_heads(config.kv_heads);
  message.set_head_dim(config.head_dim);
  message.mutable_eos_token_ids()->Assign(config.eos_ids.begin(), config.eos_ids.end());
  return message;
}

v1::GetServerInfoResponse server_info(const Service& service) {
  const EngineOptions& options = service.engine().options();
  const EngineStats stats = service.engine().stats();
  v1::GetServerInfoResponse message;
  message.set_version(TESSERA_VERSION);
  message.set_ready(service.ready());
  message.set_running(stats.running);
  message.set_waiting(stats.waiting);
  message.set_max_sequences(options.max_sequences);
  message.set_max_queue(options.max_queue);
  message.set_max_step_tokens(options.max_step_tokens);
  v1::KvCacheInfo& cache = *message.mutable_kv_cache();
  cache.set_page_bytes(stats.page_bytes);
  cache.set_pages_total(stats.pages_total);
  cache.set_pages_free(stats.pages_free);
  cache.set_token_capacity(stats.token_capacity);
  cache.set_format(std::string(options.kv.name));
  cache.set_window_bytes(stats.residual_bytes);
  cache.set_table_bytes(stats.table_bytes);
  return message;
}

namespace {

void add_tier(v1::GetCacheInfoResponse& message, const char* name, const BlockStoreStats& store,
              int64_t read) {
  if (store.limit == 0) {
    return;
  }
  v1::StorageTier& tier = *message.add_tiers();
  tier.set_tier(name);
  tier.set_limit_bytes(store.limit);
  tier.set_bytes(store.bytes);
  tier.set_units(store.blocks);
  tier.set_read_units(read);
  tier.set_dropped_units(store.dropped_blocks);
  tier.set_damaged_units(store.damaged_blocks);
}

}  // namespace

v1::GetCacheInfoResponse cache_info(const Service& service) {
  const EngineStats stats = service.engine().stats();
  const PrefixCacheStats& cache = stats.cache;
  v1::GetCacheInfoResponse message;
  message.set_unit_tokens(stats.prefix_block_tokens);
  message.set_units(cache.blocks);
  message.set_pinned_units(cache.pinned_blocks);
  message.set_bytes(cache.pages * stats.page_bytes);
  message.set_unused_bytes(cache.unlocked_pages * stats.page_bytes);
  message.set_query_tokens(stats.cache_query_tokens);
  message.set_hit_tokens(stats.cache_hit_tokens);
  message.set_entered_units(cache.inserted_blocks);
  message.set_demoted_units(cache.demoted_blocks);
  message.set_evicted_units(cache.evicted_blocks);
  message.set_handed_over_units(cache.handed_over_blocks);
  message.set_compressed_units(cache.compressed_blocks);
  add_tier(message, "host", stats.tiers.host, stats.tiers.host_read_blocks);
  add_tier(message, "disk", stats.tiers.disk, stats.tiers.disk_read_blocks);
  return message;
}

}  // namespace tessera
