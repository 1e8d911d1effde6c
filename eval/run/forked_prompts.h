#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/run/subject.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_policy.h"
#include "models/transformer.h"

namespace tessera {

// Runs trials with turns. A prompt is computed and compressed once. Each trial with that prompt
// then continues from a copy of its slot: shared pages (kv_fork) under formats alone and under a
// policy that replays, a snapshot (kv_swap_out, kv_swap_in) under another one, whose pages are not
// shared. Trials that close the section in which the prompt ends compute it themselves. So a
// question is not known when the policy acts, and a long prefill serves all questions. Pages,
// kernels and compression are those of the engine; its scheduler and prefix cache take no part,
// because policies skip the blocks of the cache.
//
// A turn is one piece of prefill, as in a chat, and the policy acts after it. The logits are those
// of teacher forcing.
class ForkedPrompts {
 public:
  struct Parts {
    KvPolicy policy;
    bool coded_residuals = false;  // this and the next as KvCacheOptions has them
    std::vector<HeadProfile> head_profiles;
    std::shared_ptr<Transformer> model;  // loaded for the steps below
    int32_t step_tokens = 0;             // >= branches
    int32_t branches = 0;                // trials that run at once
    int32_t context = 0;                 // tokens of the longest trial
    const Backend& backend;              // not owned; outlives this
    Stream stream;
  };
  // Errors: those of KvCache::create.
  static absl::StatusOr<std::unique_ptr<ForkedPrompts>> create(const Parts& parts);
  virtual ~ForkedPrompts() = default;

  // Requires: trials with turns that fit the context.
  virtual void run(std::span<const Job> jobs, const std::function<void()>& on_done) = 0;
};

// Returns: a subject that gives trials with turns to ForkedPrompts, made by `parts` when the first
// comes, and all others to `engine`.
std::unique_ptr<Subject> make_forking_subject(std::unique_ptr<Subject> engine,
                                              const ForkedPrompts::Parts& parts);

}  // namespace tessera
