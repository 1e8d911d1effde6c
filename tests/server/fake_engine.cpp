#include "tests/server/fake_engine.h"

#include <numeric>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "server/adapters/adapter_store.h"
#include "server/telemetry/metrics.h"
#include "tests/server/fake_grammars.h"

namespace tessera {

namespace {

constexpr std::chrono::seconds kEnginePatience{10};

}  // namespace

FakeEngine::~FakeEngine() {
  stop();
}

void FakeEngine::answer_with(Answer answer, std::chrono::microseconds step_time) {
  answer_ = std::move(answer);
  step_time_ = step_time;
  thread_ = std::thread([this] { run(); });
}

void FakeEngine::adapt(const ModelConfig& config) {
  adapted_ = config;
  adapted_weights_.layers.resize(static_cast<std::size_t>(config.layers));
}

absl::StatusOr<int64_t> FakeEngine::measure_adapter(const std::filesystem::path& path) const {
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  return LoraAdapter::measure(path, {adapted_.value(), {}, adapted_weights_, backend});
}

absl::StatusOr<std::shared_ptr<const LoraAdapter>> FakeEngine::load_adapter(
    const std::filesystem::path& path) const {
  if (before_read_) before_read_();
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  return LoraAdapter::load(path, {adapted_.value(), {}, adapted_weights_, backend});
}

std::shared_ptr<EventSink> FakeEngine::sink_of(RequestId id, bool take) {
  const std::lock_guard lock(mutex_);
  const auto it = running_.find(id);
  if (it == running_.end()) {
    return nullptr;
  }
  std::shared_ptr<EventSink> sink = it->second.sink;
  if (take) {
    running_.erase(it);
  }
  return sink;
}

void FakeEngine::emit(RequestId id, std::string_view text) {
  for (const char byte : text) {
    emit(id, static_cast<uint8_t>(byte));
  }
}

void FakeEngine::emit(RequestId id, const TokenLogprobs& logprobs) {
  if (const auto sink = sink_of(id, false)) {
    sink->on_logprobs(logprobs);
    emit(id, logprobs.chosen.token);
  }
}

void FakeEngine::emit(RequestId id, int32_t token) {
  if (const auto sink = sink_of(id, false)) {
    {
      const std::lock_guard lock(mutex_);
      ++emitted_[id];
    }
    sink->on_token(token);
  }
}

void FakeEngine::emit_prompt(RequestId id, const TokenLogprobs& logprobs) {
  if (const auto sink = sink_of(id, false)) {
    sink->on_prompt_logprobs(logprobs);
  }
}

void FakeEngine::tell(RequestId id, const PromptInCache& prompt) {
  if (const auto sink = sink_of(id, false)) {
    {
      const std::lock_guard lock(mutex_);
      cached_[id] = prompt.cached_tokens;
    }
    sink->on_prompt_in_cache(prompt);
  }
}

std::vector<float> FakeEngine::embedding_of(const EngineRequest& request) {
  const auto sum = std::accumulate(request.prompt.begin(), request.prompt.end(), 0);
  return {static_cast<float>(sum), static_cast<float>(request.prompt.size()),
          static_cast<float>(*request.pooling), -0.5f};
}

void FakeEngine::embed(RequestId id) {
  const auto sink = sink_of(id, false);
  if (const EngineRequest asked = request(id); sink != nullptr && asked.pooling.has_value()) {
    sink->on_embedding(embedding_of(asked));
  }
}

void FakeEngine::finish(RequestId id, FinishReason reason, absl::Status status,
                        std::optional<int32_t> stop_token) {
  const auto prompt_tokens = static_cast<int32_t>(request(id).prompt.size());
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;
  {
    const std::lock_guard lock(mutex_);
    completion_tokens = emitted_[id];
    cached_tokens = cached_[id];
  }
  if (const auto sink = sink_of(id, true)) {
    sink->on_finish({.reason = reason,
                     .status = std::move(status),
                     .prompt_tokens = prompt_tokens,
                     .cached_tokens = cached_tokens,
                     .completion_tokens = completion_tokens,
                     .stop_token = stop_token,
                     .queue_time = std::chrono::duration<double>(0.25),
                     .prefill_time = std::chrono::duration<double>(0.5)});
  }
}

bool FakeEngine::wait_for_requests(std::size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kEnginePatience, [&] { return seen_.size() >= count; });
}

bool FakeEngine::wait_for_cancel(RequestId id) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kEnginePatience, [&] { return cancelled_.contains(id); });
}

std::size_t FakeEngine::requests() const {
  const std::lock_guard lock(mutex_);
  return seen_.size();
}

EngineRequest FakeEngine::request(RequestId id) const {
  const std::lock_guard lock(mutex_);
  return seen_.at(id);
}

std::string FakeEngine::fingerprint(RequestId id) const {
  const std::lock_guard lock(mutex_);
  return fingerprints_.at(id);
}

bool FakeEngine::cancelled(RequestId id) const {
  const std::lock_guard lock(mutex_);
  return cancelled_.contains(id);
}

std::size_t FakeEngine::cancels() const {
  const std::lock_guard lock(mutex_);
  return cancelled_.size();
}

void FakeEngine::refuse_after(std::size_t requests, absl::Status status) {
  const std::lock_guard lock(mutex_);
  accepted_ = requests;
  refusal_ = std::move(status);
}

absl::StatusOr<RequestId> FakeEngine::submit(EngineRequest request) {
  const std::lock_guard lock(mutex_);
  if (!refusal_.ok() && seen_.size() >= accepted_) {
    return refusal_;
  }
  const RequestId first = seen_.size();
  const auto sinks = std::exchange(request.sinks, {});
  for (const std::shared_ptr<EventSink>& sink : sinks) {
    running_.emplace(
        seen_.size(),
        Running{.sink = sink, .request = request, .answer = answer_ ? answer_(request) : ""});
    seen_.push_back(request);
    seen_.back().adapter.reset();
    fingerprints_.push_back(request.adapter == nullptr ? "" : request.adapter->fingerprint());
    ++request.sampling.seed;
  }
  changed_.notify_all();
  return first;
}

void FakeEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancelled_.insert(id);
  changed_.notify_all();
}

void FakeEngine::drain() {
  refuse_with(absl::UnavailableError("the server is shutting down"));
}

bool FakeEngine::idle() const {
  const std::lock_guard lock(mutex_);
  return running_.empty();
}

void FakeEngine::stop() {
  drain();
  stopping_ = true;
  if (thread_.joinable()) {
    thread_.join();
  }
  const std::size_t count = requests();
  for (RequestId id = 0; id < count; ++id) {
    finish(id, FinishReason::cancelled);
  }
}

EngineStats FakeEngine::stats() const {
  const std::lock_guard lock(mutex_);
  return {.running = static_cast<int32_t>(running_.size()),
          .waiting = 3,
          .pages_total = 100,
          .pages_free = 75,
          .page_bytes = 1024,
          .page_tokens = 64,
          .residual_bytes = 4096,
          .table_bytes = 512,
          .token_capacity = 1600,
          .steps = 7,
          .prompt_tokens = 11,
          .generated_tokens = 13,
          .preemptions = 2,
          .kv_tightenings = 4,
          .kv_demotions = 17,
          .kv_dropped_tokens = 5,
          .formats = 1,
          .format_pages = {{kKvF16, 20, 5}}};
}

void FakeEngine::run() {
  while (!stopping_) {
    const bool worked = step_all();
    if (!worked || step_time_.count() > 0) {
      std::this_thread::sleep_for(worked ? step_time_ : std::chrono::microseconds(200));
    }
  }
}

bool FakeEngine::step_all() {
  std::vector<std::pair<RequestId, int32_t>> tokens;
  std::vector<std::pair<RequestId, FinishReason>> ends;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, running] : running_) {
      const auto limit = static_cast<std::size_t>(running.request.max_tokens);
      if (cancelled_.contains(id)) {
        ends.emplace_back(id, FinishReason::cancelled);
      } else if (running.next == running.answer.size()) {
        ends.emplace_back(id, FinishReason::stop);
      } else if (running.next == limit) {
        ends.emplace_back(id, FinishReason::length);
      } else {
        tokens.emplace_back(id, static_cast<uint8_t>(running.answer[running.next++]));
      }
    }
  }
  for (const auto& [id, token] : tokens) {
    emit(id, token);
  }
  for (const auto& [id, reason] : ends) {
    embed(id);
    finish(id, reason);
  }
  return !tokens.empty() || !ends.empty();
}

std::vector<int32_t> FakeTokenizer::encode(std::span<const TextSegment> segments,
                                           bool add_bos) const {
  std::vector<int32_t> ids;
  if (add_bos) {
    ids.push_back(256);
  }
  for (const TextSegment& segment : segments) {
    std::string_view rest = segment.text;
    while (!rest.empty()) {
      if (segment.parse_special && rest.starts_with("<s>")) {
        ids.push_back(256);
        rest.remove_prefix(3);
      } else {
        ids.push_back(static_cast<uint8_t>(rest.front()));
        rest.remove_prefix(1);
      }
    }
  }
  return ids;
}

std::string FakeTokenizer::token_bytes(int32_t id, bool keep_special) const {
  if (id >= vocab_size()) {
    return {};
  }
  if (is_special(id)) {
    return !keep_special ? "" : id == 256 ? "<s>" : "</s>";
  }
  return {static_cast<char>(id)};
}

std::optional<int32_t> FakeTokenizer::special_id(std::string_view text) const {
  if (text == "<s>") {
    return 256;
  }
  return text == "</s>" ? std::optional<int32_t>(257) : std::nullopt;
}

absl::StatusOr<std::vector<TextSegment>> FakeChatTemplate::render(
    const Conversation& conversation, const Variables& variables) const {
  std::vector<TextSegment> segments{{variables.bos_token, true}};
  for (const std::string& tool : conversation.tools) {
    segments.push_back({"[offers]" + tool, false});
  }
  for (const ChatMessage& message : conversation.messages) {
    if (message.role == "villain") {
      return absl::InvalidArgumentError("the chat template says: no villains");
    }
    segments.push_back({"[" + message.role + "]", true});
    segments.push_back({message.content, false});
    for (const ToolCall& call : message.tool_calls) {
      segments.push_back({"[call]" + call.name + call.arguments, false});
    }
  }
  if (variables.add_generation_prompt) {
    segments.push_back({"[assistant]", true});
  }
  return segments;
}

FakeService::FakeService(bool chats, std::vector<std::string> aliases,
                         std::unique_ptr<Tokenizer> tokenizer, const SamplingParams& sampling,
                         int64_t adapter_memory) {
  auto made = std::make_unique<FakeEngine>();
  engine = made.get();
  const AdapterStore::Options adapters{.memory = adapter_memory, .grows = true};
  service = std::make_unique<Service>(Service::Parts{
      .model_name = "fake",
      .aliases = std::move(aliases),
      .tokenizer = std::move(tokenizer),
      .chat_template = chats ? std::make_unique<FakeChatTemplate>() : nullptr,
      .chat_template_source = "{{ messages }}",
      .chat_format = chat_format_of("<tool_call> </think>", "auto"),
      .engine = std::move(made),
      .metrics = std::make_unique<Metrics>("fake"),
      .budget = &budget,
      .grammar_compiler = std::make_unique<FakeGrammarCompiler>(),
      .pooling = Pooling::last,
      .sampling = sampling,
      .adapters =
          adapter_memory > 0 ? std::make_unique<AdapterStore>(*engine, adapters) : nullptr});
}

}  // namespace tessera
