#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/kv/kv_cache.h"
#include "engine/ranks.h"
#include "engine/request_queue.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace tessera {

// The implementation of Engine: one model, one KV cache, one thread. Engine::create constructs it.
// Only tests use this class directly.
class BatchingEngine final : public Engine {
 public:
  struct Parts {
    EngineOptions options;  // with defaults resolved
    std::unique_ptr<Transformer> model;
    std::unique_ptr<KvCache> kv;
    Sampler sampler;
    const Backend& backend;  // not owned; outlives the engine
    Stream stream;
  };
  explicit BatchingEngine(Parts parts);
  ~BatchingEngine() override { stop(); }

  absl::StatusOr<RequestId> submit(EngineRequest request) override;
  void cancel(RequestId id) override { queue_.cancel(id); }
  void flush_cache() override { queue_.flush(); }

  void start() override;
  void follow() override;
  bool step() override;
  void drain() override { queue_.refuse(); }
  bool idle() const override { return queue_.empty(); }
  void stop() override;

  EngineStats stats() const override;
  const EngineOptions& options() const override { return options_; }
  const ModelConfig& config() const override { return config_; }

  // For tests.
  // Requires: called on the thread that calls step().
  const KvCache& kv() const { return *kv_; }
  const StepPlan& last_plan() const { return plan_; }
  const std::vector<std::unique_ptr<Sequence>>& sequences() const { return sequences_; }

 private:
  absl::Status check(const EngineRequest& request) const;

  // The phases of a step, in order:
  //   receive_requests  adds requests, flushes, cancels; end_overdue ends those past the deadline
  //   plan     unpins, hands over blocks if pages are short, matches prefixes, calls the Scheduler
  //   reserve  preempted: insert, swap out if compressed, release; admitted: attach, then swap in;
  //            forks; last, pages for the groups that close
  //   forward  runs the model: kv_store, attention and kv_score in each layer
  //   sample   computes logits, chooses tokens; then insert_prompts inserts stored prompt blocks
  //   compress applies the policies; publish: ended ones insert, pin, release; last, event sinks
  void receive_requests();
  void end_overdue();
  void plan();
  void reserve();
  void forward();
  void sample();
  void publish();

  // ---- the prefix cache (engine/batching_prefixes.cpp)
  void relieve_pressure();
  Candidate candidate_of(size_t i);
  void count_unlocked();
  void find_prefix_in_progress(size_t i);  // sets Candidate::waits_for of candidate `i`
  void attach_admitted();
  // Records the prompt of a new request, once for all its samples.
  void record_prompt(std::span<const std::unique_ptr<Sequence>> samples);
  void insert_prompts();  // blocks stored by this step's prefills
  // Inserts all blocks that the sequence may insert, from its slot.
  void insert_stored(Sequence& sequence, const KvSlot& slot, bool replace_coarser);
  KvPrompt cache_prompt(Sequence& sequence) {
    return sequence.cache_prompt(kv_->prefixes().block_tokens());
  }

  // ---- tensor parallelism (engine/batching_ranks.cpp)
  std::vector<std::unique_ptr<Sequence>> make_samples(RequestId first_id,
                                                      const EngineRequest& request) const;
  void receive_inputs();         // from the request queue, or from the leader's broadcast
  void verify_identical_step();  // aborts if ranks are about to plan different steps

  // One row of logits to compute: the logits after `position` of a sequence.
  struct LogitsRow {
    int32_t batch_row = 0;
    int32_t sequence = 0;
    int32_t position = 0;
    bool chooses = false;  // the sequence's next token is sampled from it
    bool seen = false;     // the logits are copied to the host, not only the sampled token
  };
  void request_logits(const StepPlan::Run& run, int32_t first_position);
  void sample_slice(std::span<const LogitsRow> rows);
  void choose(Sequence& sequence, size_t choice);
  void observe(const LogitsRow& row, std::span<const float> logits);

  Sequence& sequence_of(const StepPlan::Run& run) {
    return *sequences_[static_cast<size_t>(run.candidate)];
  }
  // Requires: the candidate runs in this step.
  const KvSlot& slot_of(int32_t candidate) const {
    return sequences_[static_cast<size_t>(candidate)]->running()->slot;
  }
  KvDemand demand_of(const Sequence& sequence) const;
  KvSlot preempt(Sequence& sequence);
  void count_running();
  void update_stats();

  void run();      // main function of the engine thread
  void end_all();  // ends all unfinished sequences as cancelled

  const EngineOptions options_;
  const std::unique_ptr<Transformer> model_;
  const ModelConfig config_;  // of the whole model, not of this rank's part
  const std::unique_ptr<KvCache> kv_;
  const Backend& backend_;
  const Stream stream_;
  RequestQueue queue_;
  std::atomic<RequestId> last_id_ = 0;

  // Used only by the engine thread, or by the thread that calls step(). Allocated once and reused
  // by every step.
  const Scheduler scheduler_;
  Ranks ranks_;
  Sampler sampler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // unfinished, in scheduling order
  StepInputs inputs_;
  bool ended_ = false;                 // after the last step
  std::vector<Candidate> candidates_;  // of the plan, parallel to sequences_
  StepPlan plan_;
  std::vector<KvReservation> reservations_;
  std::vector<KvSlot> released_slots_;
  std::vector<KvCopy> forks_;
  std::vector<const KvSlot*> running_slots_;
  std::vector<int64_t> unlocked_pages_;  // parallel to running_slots_
  std::vector<int32_t> batch_tokens_;
  std::vector<int32_t> batch_positions_;
  std::vector<SequenceSpan> batch_sequences_;
  std::vector<KvScoring> batch_scorings_;    // of each sequence; empty if none has token scores
  std::vector<const KvSlot*> stored_slots_;  // slots of the step's sequences
  std::vector<LogitsRow> logits_rows_;
  std::vector<int32_t> slice_rows_;  // batch rows of one slice of logits_rows_
  EngineStats counting_;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // copy of counting_, published at the end of a step

  std::mutex thread_mutex_;  // serialises start() and stop()
  std::thread thread_;
  bool stopped_ = false;
};

}  // namespace tessera
