#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/batching_engine.h"
#include "models/transformer.h"

namespace tessera {

// The checkpoint under an engine of a test, and how it is loaded.
struct EngineModel {
  std::filesystem::path directory;
  WeightFormat weights = WeightFormat::f32;
  int32_t batch_tokens = 0;  // tokens of the model's largest step, if more than the engine's
  int32_t logits_rows = 5;
  Communicator* ranks = nullptr;
};

// Returns: an engine over the checkpoint.
// Errors: those of Transformer::load and Engine::create.
inline absl::StatusOr<std::unique_ptr<Engine>> try_engine_of(const EngineModel& of,
                                                             const EngineOptions& options,
                                                             const Backend& backend,
                                                             Stream stream) {
  StepLimits limits = step_limits(options);
  limits.tokens = std::max(limits.tokens, of.batch_tokens);
  auto model = Transformer::load(of.directory,
                                 {.weights = of.weights,
                                  .limits = limits,
                                  .max_logits_rows = of.logits_rows,
                                  .ranks = of.ranks},
                                 backend, stream);
  if (!model.ok()) return model.status();
  return Engine::create(options, std::move(model).value(), backend, stream);
}

inline std::unique_ptr<BatchingEngine> engine_of(const EngineModel& of,
                                                 const EngineOptions& options,
                                                 const Backend& backend, Stream stream) {
  auto made = try_engine_of(of, options, backend, stream);
  EXPECT_TRUE(made.ok()) << made.status();
  return std::unique_ptr<BatchingEngine>(
      static_cast<BatchingEngine*>(std::move(made).value().release()));
}

// The same with weights of f32.
// batch_tokens: tokens of the model's largest step, at least options.max_step_tokens.
inline std::unique_ptr<BatchingEngine> batching_engine_of(const std::filesystem::path& directory,
                                                          const EngineOptions& options,
                                                          int32_t batch_tokens,
                                                          const Backend& backend, Stream stream) {
  return engine_of({.directory = directory, .batch_tokens = batch_tokens}, options, backend,
                   stream);
}

}  // namespace tessera
