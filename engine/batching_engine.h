#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "engine/background_replay.h"
#include "engine/engine.h"
#include "engine/engine_counters.h"
#include "engine/engine_thread.h"
#include "engine/kv/kv_cache.h"
#include "engine/prefix_admission.h"
#include "engine/prefix_wishes.h"
#include "engine/ranks.h"
#include "engine/request_intake.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/speculation.h"
#include "engine/step_builder.h"
#include "engine/step_candidates.h"
#include "engine/step_pooler.h"
#include "engine/step_sampler.h"
#include "engine/tenant_clock.h"

namespace tessera {

// The implementation of Engine: one model, one KV cache, one thread. Engine::create constructs it.
// Only tests use this class directly.
class BatchingEngine final : public Engine {
 public:
  struct Parts {
    EngineOptions options;  // with defaults resolved
    std::unique_ptr<Transformer> model;
    std::unique_ptr<KvCache> kv;
    std::unique_ptr<BlockTiers> tiers;  // null: none
    Sampler sampler;
    std::unique_ptr<DraftModel> draft_model;  // null: none
    const Backend& backend;                   // not owned; outlives the engine
    Stream stream;
  };
  explicit BatchingEngine(Parts parts);
  ~BatchingEngine() override { stop(); }

  absl::StatusOr<RequestId> submit(EngineRequest request) override {
    return intake_.submit(std::move(request));
  }
  void cancel(RequestId id) override { intake_.queue().cancel(id); }
  absl::StatusOr<int64_t> measure_adapter(const std::filesystem::path& path) const override {
    return model_->measure_adapter(path);
  }
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> load_adapter(
      const std::filesystem::path& path) const override {
    return model_->load_adapter(path);
  }
  void flush_cache() override { intake_.queue().flush(); }

  void start() override;
  void follow() override;
  bool step() override;
  void drain() override {
    drained_ = std::chrono::steady_clock::now();
    intake_.queue().refuse();
  }
  bool idle() const override { return intake_.queue().empty(); }
  void stop() override;

  EngineStats stats() const override { return counters_.published(); }
  PrefixOutline outline() const override { return counters_.outline(); }
  bool serves(const KvPolicy& policy) const override { return kv_->check(policy).ok(); }
  const EngineOptions& options() const override { return options_; }
  const ModelConfig& config() const override { return config_; }

  // For tests.
  // Requires: called on the thread that calls step().
  const KvCache& kv() const { return *kv_; }
  const StepPlan& last_plan() const { return scheduler_.last_plan(); }
  const std::vector<std::unique_ptr<Sequence>>& sequences() const { return sequences_; }
  const TenantClock& tenants() const { return tenants_; }

 private:
  // The phases of a step, in order:
  //   receive_requests  adds requests, flushes, cancels; end_overdue ends those past the deadline
  //   plan     sorts by tenant clocks, unpins, hands over blocks if pages are short, takes what was
  //            read from the stores, ends prefetches, matches prefixes, calls the Scheduler. If
  //            pages lack, pins yield theirs; then plans the background replay
  //   reserve  preempted: insert, swap out if compressed, release; budgets are tightened; admitted:
  //            attach, then swap in; forks; last, pages for the groups that close. The background
  //            replay begins or is given up before sequences are admitted
  //   forward  runs the model: kv_store, attention and kv_score in each layer
  //   sample   computes hidden states for embeddings, then logits; chooses tokens; then stored
  //            prompt blocks are inserted
  //   KvCache::compress applies the policies; then compressed sections are inserted, and a block
  //            whose background replay is complete is compressed
  //   publish  ended ones insert, release, pin; last, event sinks
  void receive_requests();
  void end_overdue();
  void plan();
  void plan_sequences();
  void reserve();
  void forward();
  void sample();
  void publish();

  KvSlot preempt(Sequence& sequence);
  void note_rate();  // at which the step has computed prompts
  bool wait_for_stores();
  std::chrono::steady_clock::time_point end_of_saving() const;
  void count_running();

  void run();      // main function of the engine thread
  void end_all();  // ends all unfinished sequences as cancelled

  const EngineOptions options_;
  const std::unique_ptr<Transformer> model_;
  const ModelConfig config_;  // of the whole model, not of this rank's part
  const std::unique_ptr<BlockTiers> tiers_;
  const std::unique_ptr<KvCache> kv_;
  const Backend& backend_;
  const Stream stream_;
  Ranks ranks_;
  RequestIntake intake_;
  std::atomic<std::chrono::steady_clock::time_point> drained_{};  // the epoch: not drained
  EngineCounters counters_;

  // Used only by the engine thread, or by the thread that calls step(). Allocated once and reused
  // by every step.
  Scheduler scheduler_;
  TenantClock tenants_;
  PrefixAdmission admission_;
  StepCandidates candidates_;
  PrefixWishes wishes_;
  BackgroundReplay replay_;
  StepBuilder builder_;
  Speculation speculation_;
  StepPooler pooler_;
  StepSampler sampler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // unfinished, in scheduling order
  StepInputs inputs_;
  int64_t prefilled_ = 0;               // tokens of prompts in the last step
  bool ended_ = false;                  // after the last step
  std::vector<KvSlot> released_slots_;  // of one release

  EngineThread thread_;
};

}  // namespace tessera
