#include "server/generation/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/retry_after.h"
#include "server/adapters/adapter_store.h"
#include "server/base/error.h"
#include "server/base/memory_guard.h"
#include "server/base/unique_id.h"
#include "server/generation/answer_bytes.h"
#include "server/generation/caller_limits.h"
#include "server/generation/prompt_room.h"
#include "server/generation/token_lists.h"
#include "server/generation/truncate_prompt.h"
#include "server/telemetry/access_log.h"
#include "server/telemetry/measured_sink.h"
#include "server/telemetry/metrics.h"

namespace tessera {

namespace {

using Clock = std::chrono::steady_clock;

// Caller of requests without one.
std::shared_ptr<const Caller> anyone() {
  static const auto kCaller = std::make_shared<const Caller>();
  return kCaller;
}

// One of so many tokens of a text that is only converted counts in a tenant's rate of tokens.
constexpr int64_t kTextPart = 10;

// Returns: the status with a field's name before its message.
absl::Status named(const std::string& field, const absl::Status& status) {
  const absl::Status made(status.code(),
                          fmt::format("{}: {}", field, std::string(status.message())));
  const auto wait = retry_after_of(status);
  return with_param(wait ? with_retry_after(made, *wait) : made, field);
}

}  // namespace

struct Service::State {
  Parts parts;
  std::optional<PromptEncoder> prompts;
  std::atomic<bool> ready = true;
  int64_t token_capacity = 0;
  bool any_name = false;
  std::unique_ptr<MemoryGuard> memory;
  std::unique_ptr<GrammarStore> grammars;
};

Service::Service(Parts parts) : sampling_(parts.sampling), state_(std::make_unique<State>()) {
  state_->prompts.emplace(PromptEncoder::Parts{.model_name = parts.model_name,
                                               .tokenizer = std::move(parts.tokenizer),
                                               .chat_template = std::move(parts.chat_template),
                                               .context = parts.engine->options().context,
                                               .rows = parts.engine->config().vocab,
                                               .max_answer_bytes = parts.max_answer_bytes,
                                               .budget = parts.budget});
  state_->grammars = std::make_unique<GrammarStore>(
      std::move(parts.grammar_compiler), grammar_limits(parts.grammar_memory, parts.engine_load));
  state_->any_name = std::erase(parts.aliases, "*") > 0;
  state_->parts = std::move(parts);
  state_->token_capacity = state_->parts.engine->stats().token_capacity;
  state_->memory = std::make_unique<MemoryGuard>(
      state_->parts.memory_limit, [&engine = *state_->parts.engine] { return engine.idle(); });
  GrammarStore& grammars = *state_->grammars;
  watch_memory(
      {"grammars", [&grammars] { return grammars.bytes(); }, [&grammars] { grammars.shrink(); }});
  const auto show = [this](const char* name, std::function<int64_t()> bytes) {
    watch_memory({name, std::move(bytes), nullptr});
  };
  show("compilations", [&grammars] { return grammars.compiling_bytes(); });
  show("grammar_masks", [&grammars] { return grammars.mask_bytes(); });
  if (AdapterStore* const adapters = state_->parts.adapters.get()) {
    watch_memory(
        {"adapters", [adapters] { return adapters->bytes(); }, [adapters] { adapters->shrink(); }});
  }
  show("swapped_sequences", [this] { return engine().stats().swapped_bytes; });
  if (const ByteBudget* budget = state_->parts.budget) {
    show("bodies_and_answers", [budget] { return static_cast<int64_t>(budget->used()); });
  }
}

// Destroys the engine first, because its thread reports to the metrics until it is joined.
Service::~Service() {
  state_->memory.reset();
  state_->parts.adapters.reset();  // ends requests that wait for an adapter
  state_->grammars.reset();        // or for a grammar
  state_->parts.engine.reset();
}

absl::Status Service::admit(const Caller& caller) {
  if (const absl::Status memory = state_->memory->check(); !memory.ok()) {
    return refuse(memory);
  }
  return count_request(caller);
}

// Errors: ResourceExhausted if a rate of the caller's tenant is used up.
absl::Status Service::count_request(const Caller& caller) {
  const absl::Status rate = caller.meter->admit(caller.tenant, Clock::now());
  if (rate.ok()) {
    return rate;
  }
  state_->parts.metrics->tenant_refused(caller.tenant.name);
  return refuse(rate);
}

void Service::charge_text(const Caller& caller, std::size_t tokens) const {
  caller.meter->charge(static_cast<int64_t>(tokens) / kTextPart);
}

// Errors that need no work to be found.
absl::Status Service::precheck(const GenerateRequest& request) {
  for (const absl::Status& status :
       {check_limits(request, request.caller->tenant), state_->memory->check()}) {
    if (!status.ok()) {
      return refuse(status);
    }
  }
  return absl::OkStatus();
}

void Service::compile(GenerateRequest& request, GrammarStore::Done done) {
  request.caller = request.caller ? request.caller : anyone();
  if (const absl::Status status = precheck(request); !status.ok()) {
    return done(status);
  }
  const Caller& caller = *request.caller;
  const GrammarClient client{.name = caller.turn_name(), .tenant = !caller.tenant.name.empty()};
  const GrammarSpec& spec = *request.grammar;
  state_->grammars->get(client, spec,
                        [this, field = spec.field,
                         done = std::move(done)](absl::StatusOr<GrammarStore::Grammar> result) {
                          if (!result.ok()) {
                            result = refuse(named(field, result.status()));
                          }
                          done(std::move(result));
                        });
}

absl::StatusOr<Accepted> Service::generate(GenerateRequest request,
                                           std::vector<std::shared_ptr<EventSink>> sinks) {
  const Clock::time_point received = Clock::now();
  request.caller = request.caller ? request.caller : anyone();
  TESSERA_RETURN_IF_ERROR(precheck(request));
  const std::shared_ptr<const Caller> caller = request.caller;
  if (!request.admitted) {
    TESSERA_RETURN_IF_ERROR(count_request(*caller));
  }
  TESSERA_ASSIGN_OR_RETURN(PromptEncoder::Encoded encoded,
                           prompts().encode(request.prompt, request.prompt_options));
  const std::size_t whole = encoded.ids.size();
  truncate_prompt(request, state_->parts.engine->options().context, tokenizer().bos_id(),
                  encoded.ids);
  if (encoded.ids.size() < whole) {
    encoded.kept.clear();  // its beginning is another one
  }
  request.max_tokens = request.cache.prefetch ? 0 : request.max_tokens;
  const auto tokens = static_cast<int64_t>(encoded.ids.size());
  caller->meter->charge(tokens);
  absl::StatusOr<Accepted> accepted =
      submit(std::move(request), std::move(encoded), std::move(sinks), received);
  if (!accepted.ok()) {
    // The text was converted all the same. A request for which there is no room counts no more.
    const bool busy =
        absl::IsResourceExhausted(accepted.status()) || absl::IsUnavailable(accepted.status());
    caller->meter->refund(busy ? 1 : 0, tokens - tokens / kTextPart);
    return refuse(accepted.status());
  }
  return accepted;
}

absl::StatusOr<Accepted> Service::submit(GenerateRequest request, PromptEncoder::Encoded encoded,
                                         std::vector<std::shared_ptr<EventSink>> sinks,
                                         Clock::time_point received) {
  const int64_t context = state_->parts.engine->options().context;
  Accepted accepted;
  accepted.prompt = std::move(encoded.ids);
  accepted.open_thought = encoded.open_thought;
  accepted.kept = std::move(encoded.kept);
  const auto prompt_tokens = static_cast<int64_t>(accepted.prompt.size());
  TESSERA_RETURN_IF_ERROR(check_room(request, prompt_tokens, context));
  TESSERA_ASSIGN_OR_RETURN(EngineRequest submitted, engine_request(request, accepted.prompt));
  submitted.kept = kept_within(accepted.kept, request);
  submitted.max_tokens =
      asked_tokens(request, sinks.size(), submitted.max_tokens, state_->parts.max_answer_bytes);
  TESSERA_ASSIGN_OR_RETURN(
      accepted.room, take_room(request, sinks.size(), prompt_tokens,
                               std::min<int64_t>(submitted.max_tokens, context - prompt_tokens)));
  TESSERA_CHECK(!request.grammar || request.compiled_grammar != nullptr,
                "a request with a grammar has it compiled");
  TESSERA_CHECK(request.adapter_name.empty() || request.adapter != nullptr,
                "a request with an adapter has it in memory");
  submitted.grammar = std::move(request.compiled_grammar);
  for (std::shared_ptr<EventSink>& sink : sinks) {
    auto measured = std::make_shared<MeasuredSink>(MeasuredSink::Args{
        std::move(sink), *state_->parts.metrics, received, request.caller, request.record});
    accepted.generations.push_back({0, make_text(request), measured->stopped_by_text});
    submitted.sinks.push_back(std::move(measured));
  }
  const int32_t max_tokens = submitted.max_tokens;
  if (request.record != nullptr) {
    request.record->note_submitted(Clock::now());
  }
  const absl::StatusOr<RequestId> first = state_->parts.engine->submit(std::move(submitted));
  if (!first.ok()) {
    state_->parts.metrics->tenant_refused(request.caller->tenant.name);
    return first.status();
  }
  state_->parts.metrics->accepted(sinks.size(), max_tokens);
  if (request.record != nullptr) {
    request.record->prompt_tokens += prompt_tokens;
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    accepted.generations[i].id = *first + i;
  }
  return accepted;
}

absl::StatusOr<EngineRequest> Service::engine_request(const GenerateRequest& request,
                                                      std::vector<int32_t> prompt) const {
  const Engine& engine = *state_->parts.engine;
  EngineRequest made;
  TESSERA_ASSIGN_OR_RETURN(made.kv, resolve_kv_policy(request.kv, engine.options().kv));
  static_cast<RequestOptions&>(made) = request;
  if (request.prompt_options.infill.has_value() && !request.ignore_eos) {
    const std::vector<int32_t>& ends = prompts().infill()->ends;
    made.stop_ids.insert(made.stop_ids.end(), ends.begin(), ends.end());
  }
  made.cache_salt = request.caller->cache_salt(request.cache_salt);
  made.tenant = tenant_of(*request.caller, state_->token_capacity);
  TESSERA_ASSIGN_OR_RETURN(made.sampling.bad_words, words_of(tokenizer(), request.bad_texts));
  if (request.breakers || request.sampling.dry_multiplier > 0) {
    TESSERA_ASSIGN_OR_RETURN(made.sampling.dry_sequence_breakers,
                             breakers_of(tokenizer(), request.breakers));
  }
  made.sampling.seed = request.seed.value_or(request.deterministic ? 0 : unique_number());
  const auto room = engine.options().context - static_cast<int32_t>(prompt.size());
  made.max_tokens = request.max_tokens.value_or(room);
  made.prompt = std::move(prompt);
  made.deadline = request.deadline;
  made.adapter = request.adapter;
  made.pooling = request.pooling;
  made.transfer = request.transfer;
  const auto timeout = request.queue_timeout.value_or(state_->parts.queue_timeout);
  if (timeout.count() > 0) {
    made.start_by = engine.options().clock() + timeout;
  }
  return made;
}

TextStream Service::make_text(const GenerateRequest& request) const {
  const bool chat = std::holds_alternative<Conversation>(request.prompt);
  return {tokenizer(),
          {.keep_special = request.keep_special,
           .continues_text = !chat,
           .printed = request.printed_special},
          request.stop,
          request.include_stop};
}

// Counts a refused request. Returns: `status`.
absl::Status Service::refuse(absl::Status status) {
  state_->parts.metrics->rejected(status);
  return status;
}

void Service::cancel(RequestId id) {
  state_->parts.engine->cancel(id);
}

void Service::stop(const Generation& generation) {
  *generation.stopped_by_text = true;
  state_->parts.engine->cancel(generation.id);
}

// Errors: InvalidArgument if the answer may become too large, Unavailable if the others leave it no
// room.
absl::StatusOr<ByteBudget::Share> Service::take_room(const GenerateRequest& request,
                                                     std::size_t samples, int64_t prompt_tokens,
                                                     int64_t max_tokens) const {
  const Parts& parts = state_->parts;
  const int64_t bytes = answer_bytes(request, samples, prompt_tokens, max_tokens);
  if (std::cmp_greater(bytes, parts.max_answer_bytes)) {
    const bool logprobs = request.sampling.top_logprobs || request.sampling.prompt_logprobs;
    return invalid_field(
        samples > 1 ? "n"
        : logprobs  ? "logprobs"
                    : "max_tokens",
        fmt::format("the answer may take {} bytes of memory, this server allows {}: "
                    "ask for fewer choices, tokens or log probabilities",
                    bytes, parts.max_answer_bytes));
  }
  return take_bytes(parts.budget, static_cast<std::size_t>(bytes));
}

absl::StatusOr<AnswerNotation> Service::prepare_chat(const ToolUse& use,
                                                     GenerateRequest& request) const {
  return tessera::prepare_chat(state_->parts.chat_format, tokenizer(), use, request);
}

bool Service::ready() const {
  return state_->ready;
}

void Service::set_not_ready() {
  state_->ready = false;
}

void Service::drain() {
  set_not_ready();
  state_->parts.engine->drain();
}

void Service::watch_memory(HeldMemory part) {
  state_->memory->add(std::move(part));
}

std::string Service::expose_metrics() const {
  return metrics().expose(engine().stats(), engine().options(), state_->memory->resident(),
                          state_->memory->bytes_by_part());
}

const std::string& Service::model_name() const {
  return state_->parts.model_name;
}
std::span<const std::string> Service::aliases() const {
  return state_->parts.aliases;
}
bool Service::has_any_name() const {
  return state_->any_name;
}
const std::string& Service::chat_template_source() const {
  return state_->parts.chat_template_source;
}
const Tokenizer& Service::tokenizer() const {
  return prompts().tokenizer();
}
std::optional<Pooling> Service::pooling() const {
  return state_->parts.pooling;
}
const PromptEncoder& Service::prompts() const {
  return *state_->prompts;
}
Engine& Service::engine() {
  return *state_->parts.engine;
}
const Engine& Service::engine() const {
  return *state_->parts.engine;
}
const Metrics& Service::metrics() const {
  return *state_->parts.metrics;
}
ByteBudget* Service::budget() const {
  return state_->parts.budget;
}
AdapterStore* Service::adapters() const {
  return state_->parts.adapters.get();
}
std::size_t Service::max_answer_bytes() const {
  return state_->parts.max_answer_bytes;
}

}  // namespace tessera
