#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "eval/run/trial.h"

namespace tessera {

// A trial to run, and where its result goes.
struct Job {
  const Trial* trial = nullptr;
  TrialResult* result = nullptr;
  std::vector<float>* keep_logits = nullptr;  // the reference's: gets [positions, vocab]
  std::span<const float> reference{};         // [positions, vocab] to compare with; empty: none
  bool measure_kv = false;
};

// Whatever can be evaluated: an engine with a KV preset, or a server.
class Subject {
 public:
  virtual ~Subject() = default;

  virtual std::string_view name() const = 0;

  // Whether whole distributions can be seen, which compared trials need.
  virtual bool gives_logits() const = 0;

  // Runs all jobs, batched as the subject likes, and calls `on_done` after each. A result depends
  // on its trial alone. Errors: a trial that the subject refuses, with its reason.
  virtual absl::Status run(std::span<const Job> jobs, const std::function<void()>& on_done) = 0;
};

}  // namespace tessera
