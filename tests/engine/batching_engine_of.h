#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "engine/batching_engine.h"
#include "models/transformer.h"

namespace tessera {

// Returns: an engine over the checkpoint in `directory`, with f32 weights.
// batch_tokens: tokens of the model's largest step, at least options.max_step_tokens.
inline std::unique_ptr<BatchingEngine> batching_engine_of(const std::filesystem::path& directory,
                                                          const EngineOptions& options,
                                                          int32_t batch_tokens,
                                                          const Backend& backend, Stream stream) {
  auto model = Transformer::load(directory,
                                 {.weights = WeightFormat::f32,
                                  .limits = {batch_tokens, options.max_sequences, options.context},
                                  .max_logits_rows = 5},
                                 backend, stream);
  EXPECT_TRUE(model.ok()) << model.status();
  auto made = Engine::create(options, std::move(model).value(), backend, stream);
  EXPECT_TRUE(made.ok()) << made.status();
  return std::unique_ptr<BatchingEngine>(
      static_cast<BatchingEngine*>(std::move(made).value().release()));
}

}  // namespace tessera
