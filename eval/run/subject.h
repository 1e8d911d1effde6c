#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "eval/tasks/trial.h"

namespace tessera {

// A trial to run, and the destination of its result. Pointers and spans are not owned.
struct Job {
  const Trial* trial = nullptr;
  TrialResult* result = nullptr;
  std::vector<float>* keep_logits = nullptr;  // for the reference: receives [positions, vocab]
  std::span<const float> reference{};         // [positions, vocab] to compare with; empty: none
  bool measure_kv = false;
};

// Something to evaluate: an engine with a KV preset, or a server.
class Subject {
 public:
  virtual ~Subject() = default;

  virtual std::string_view name() const = 0;

  // Returns: true if run() can give full distributions, which compared trials need.
  virtual bool gives_logits() const = 0;

  // Runs all jobs, in batches that the subject chooses, and calls `on_done` after each job. A
  // result depends only on its trial.
  // Errors: those of a rejected trial, with the reason.
  virtual absl::Status run(std::span<const Job> jobs, const std::function<void()>& on_done) = 0;
};

}  // namespace tessera
