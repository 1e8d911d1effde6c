#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "models/lora/adapter.h"
#include "models/weights/weights.h"
#include "server/base/request_work.h"
#include "server/generation/service.h"

namespace tessera {

// An engine without a model, which counts each sample as a request of its own. The test drives it
// with emit() and finish(). After answer_with(), a thread answers every request instead, one token
// of each running request at a time. Tokens are bytes: see FakeTokenizer.
class FakeEngine final : public Engine {
 public:
  using Answer = std::function<std::string(const EngineRequest&)>;

  ~FakeEngine() override;

  void answer_with(Answer answer, std::chrono::microseconds step_time = {});

  void emit(RequestId id, std::string_view text);
  void emit(RequestId id, const TokenLogprobs& logprobs);
  void tell(RequestId id, const PromptInCache& prompt);
  void emit_prompt(RequestId id, const TokenLogprobs& logprobs);
  // Reports the embedding of a request with a pooling: of four values, which depend on its prompt
  // and its pooling. Each request that answer_with() answers gets it too.
  static std::vector<float> embedding_of(const EngineRequest& request);
  void embed(RequestId id);
  void finish(RequestId id, FinishReason reason, absl::Status status = absl::OkStatus(),
              std::optional<int32_t> stop_token = std::nullopt);

  // Blocks until `count` requests have been submitted in all.
  // Returns: false after ten seconds.
  bool wait_for_requests(std::size_t count);
  // Blocks until the request was cancelled.
  bool wait_for_cancel(RequestId id);

  std::size_t requests() const;
  EngineRequest request(RequestId id) const;  // without its adapter
  // Of its adapter; empty: none. A request that runs holds its adapter.
  std::string fingerprint(RequestId id) const;
  bool cancelled(RequestId id) const;
  std::size_t cancels() const;
  void refuse_with(absl::Status status) { refuse_after(requests(), std::move(status)); }
  // `requests`: requests that are accepted, in all
  void refuse_after(std::size_t requests, absl::Status status);

  absl::StatusOr<RequestId> submit(EngineRequest request) override;
  void cancel(RequestId id) override;
  // Reads adapters of attention's q, k and v for the model `config`, which then is the engine's.
  void adapt(const ModelConfig& config);
  // Blocks each read of an adapter until the function returns.
  void before_read(std::function<void()> wait) { before_read_ = std::move(wait); }
  absl::StatusOr<int64_t> measure_adapter(const std::filesystem::path& path) const override;
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> load_adapter(
      const std::filesystem::path& path) const override;
  void flush_cache() override { ++flushes_; }
  int flushes() const { return flushes_; }
  void start() override {}
  void follow() override {}
  bool step() override { return false; }
  void drain() override;
  bool idle() const override;
  void stop() override;
  EngineStats stats() const override;
  PrefixOutline outline() const override { return outlined_; }
  void outline_as(PrefixOutline outline) { outlined_ = std::move(outline); }
  bool serves(const KvPolicy& policy) const override { return policy == options_.kv.policy; }
  const EngineOptions& options() const override { return options_; }
  const ModelConfig& config() const override { return config_; }

 private:
  struct Running {
    std::shared_ptr<EventSink> sink;
    EngineRequest request;
    std::string answer;
    std::size_t next = 0;
  };

  void run();
  bool step_all();
  std::shared_ptr<EventSink> sink_of(RequestId id, bool take);
  void emit(RequestId id, int32_t token);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> flushes_ = 0;
  std::map<RequestId, Running> running_;
  std::vector<EngineRequest> seen_;  // without their sinks and adapters
  std::vector<std::string> fingerprints_;
  std::set<RequestId> cancelled_;
  std::map<RequestId, int32_t> emitted_;  // numbers of tokens
  std::map<RequestId, int32_t> cached_;   // tokens, as told
  absl::Status refusal_;
  std::size_t accepted_ = 0;  // requests before refusal_ applies, if it is an error
  Answer answer_;
  std::chrono::microseconds step_time_{};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
  PrefixOutline outlined_;
  std::optional<ModelConfig> adapted_;
  WeightViews adapted_weights_;
  std::function<void()> before_read_;
  EngineOptions options_{.context = 100'000};
  ModelConfig config_ = [] {
    ModelConfig config;
    config.hidden = 4;
    config.vocab = 260;  // two more than the tokenizer's
    return config;
  }();
};

// Ids 0 to 255 are bytes, 256 is "<s>", which begins a text, and 257 is "</s>".
class FakeTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::span<const TextSegment> segments, bool add_bos) const override;
  std::string token_bytes(int32_t id, bool keep_special) const override;
  bool strips_leading_space() const override { return true; }
  bool is_special(int32_t id) const override { return id >= 256; }
  std::optional<int32_t> special_id(std::string_view text) const override;
  int32_t vocab_size() const override { return 258; }
  std::optional<int32_t> bos_id() const override { return 256; }
  std::optional<int32_t> eos_id() const override { return 257; }
};

// Renders "<s>[user]hello[assistant]"; refuses the role "villain".
class FakeChatTemplate final : public ChatTemplate {
 public:
  absl::StatusOr<std::vector<TextSegment>> render(const Conversation& conversation,
                                                  const Variables& variables) const override;
};

// A service named "fake" over the three fakes. With adapter_memory it has a store of adapters.
struct FakeService {
  explicit FakeService(bool chats = true, std::vector<std::string> aliases = {"alias"},
                       std::unique_ptr<Tokenizer> tokenizer = std::make_unique<FakeTokenizer>(),
                       const SamplingParams& sampling = {}, int64_t adapter_memory = 0);

  ByteBudget budget{256U << 20U};
  WorkPool pool{{}};
  RequestWork work{budget, pool};
  FakeEngine* engine;
  std::unique_ptr<Service> service;
};

}  // namespace tessera
