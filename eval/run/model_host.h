#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "eval/run/presets.h"
#include "eval/run/subject.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/transformer.h"
#include "text/tokenizer.h"

namespace tessera {

struct ModelHostOptions {
  std::filesystem::path model;
  std::optional<WeightFormat> weights = WeightFormat::f32;  // none: as the checkpoint has them
  int32_t threads = 0;           // 0: one for each core that this process may use
  int32_t batch = 8;             // sequences that run at once
  int32_t context = 0;           // tokens of the longest trial; 0: the model's context
  int32_t replay = 0;            // tokens behind them, for presets that replay the last section
  bool coded_residuals = false;  // residual buffers of presets in formats of codes have 8 bits
};

// A model in memory, and engines around it, one for each KV preset. The backend outlives it.
class ModelHost {
 public:
  // `backend` is the table of ops to use; tests supply tables of their own. device_stream: stream
  // of a backend with memory of its own. Other backends run on this host's threads.
  // Errors: those of loading a model.
  static absl::StatusOr<std::unique_ptr<ModelHost>> load(const ModelHostOptions& options,
                                                         const Backend& backend,
                                                         Stream device_stream = {});

  // Returns: an engine with this preset's pages. `tokenizer` and this host must outlive it.
  // Errors: those of Engine::create, with the preset's name.
  absl::StatusOr<std::unique_ptr<Subject>> subject(const EvalPreset& preset,
                                                   const Tokenizer& tokenizer) const;

  const ModelConfig& config() const { return transformer_->config(); }
  std::string device() const;  // "cpu (avx512), 2 threads"

 private:
  ModelHost(const ModelHostOptions& options, const Backend& backend, Stream device_stream);

  ModelHostOptions options_;
  const Backend& backend_;
  std::unique_ptr<ThreadPool> pool_;
  Stream stream_;
  std::shared_ptr<Transformer> transformer_;
};

}  // namespace tessera
