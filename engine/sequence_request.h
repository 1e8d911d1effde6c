#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/kv_presets.h"
#include "engine/request.h"

namespace tessera {

// Limits and defaults of the engine, and the time of submission.
struct SequenceDefaults {
  int32_t context = 0;  // maximum tokens of a sequence, prompt and completion
  std::span<const int32_t> eos_ids;
  KvPreset kv;  // of requests without a preset
  // Coarsest grade of cached prefix blocks that requests without cache_accept accept.
  KvFormat cache_accept;
  float kv_floor = 1;                         // of requests that name none
  std::chrono::steady_clock::time_point now;  // by the engine's clock
  int32_t hidden = 0;                         // values of a hidden state
};

// What the samples of a request have in common: the request with the engine's defaults filled in.
// None of them changes it.
struct SequenceRequest {
  using Time = std::chrono::steady_clock::time_point;

  // Requires: the request passed the engine's checks.
  static std::shared_ptr<const SequenceRequest> of(const EngineRequest& request,
                                                   const SequenceDefaults& defaults);

  std::vector<int32_t> stop_ids;  // in ascending order, each once
  std::vector<int32_t> forced;    // all generated tokens under teacher forcing, or none
  std::shared_ptr<const LoraAdapter> adapter;  // null: none
  bool constrained = false;                    // its tokens follow a grammar
  // Its next tokens may be drafted: they are sampled, by a policy that neither scores queries nor
  // reads other tokens one by one.
  bool may_draft = false;
  // Number of first tokens that the samples share by forks and compute once. (shareable_tokens
  // limits sharing through the prefix cache.) It is the prompt without its last token, because each
  // sample needs the logits of that token. With sparse formats it is rounded down to whole groups
  // and leaves out the newest tokens. 0 if the request has one sample or a lossy policy.
  int32_t shareable = 0;
  KvPreset kv;
  float kv_floor = 1;  // 1 for a deterministic request

  // What it asks of the prefix cache.
  struct Cache : EngineRequest::Cache {
    KvFormat accept;  // the coarsest format that it reads
    // A match may mix compressed sections with whole blocks (section step): neither the request nor
    // its policy says how exact its prefix must be.
    bool accepts_sections = false;
    std::string salt;                          // behind the fingerprint of the adapter
    std::vector<KeptPrefix> kept;              // the beginnings of its prompt that are to be kept
    std::shared_ptr<PrefixTransfer> transfer;  // null: none
  };
  Cache cache;

  Time submitted;
  std::optional<Time> deadline;
  std::optional<Time> start_by;  // the queue timeout

  // The earlier of queue timeout and deadline.
  std::optional<Time> latest_start() const;
  // Returns: why a sequence of this request ends at `now`; OK if it goes on.
  // Errors: DeadlineExceeded; ResourceExhausted if it has waited for its first admission for longer
  // than its queue timeout.
  absl::Status check_time(Time now, bool was_admitted) const;
};

}  // namespace tessera
