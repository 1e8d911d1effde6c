#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/kv/kv_arena.h"
#include "models/transformer.h"

namespace tessera {

// New tokens of the sequence in a slot.
struct Piece {
  int32_t slot = 0;
  std::vector<int32_t> tokens;
  const LoraAdapter* adapter = nullptr;  // not owned
};

// A model with its own pages, driven step by step without an engine.
class ModelRunner {
 public:
  struct Options {
    CpuIsa isa = CpuIsa::scalar;
    std::optional<WeightFormat> weights = WeightFormat::f32;
    KvFormat kv = kKvF32;
    int threads = 2;
    int32_t slots = 4;
    int32_t context = 0;         // tokens; 0: the model's
    int32_t first_position = 0;  // of a sequence's first token, for RoPE
    int32_t step_tokens = 128;
    Communicator* ranks = nullptr;  // TransformerOptions::ranks; not owned
  };

  // Aborts if the model does not load.
  ModelRunner(const std::filesystem::path& directory, const Options& options);

  // Runs one step that appends each piece to its slot's sequence.
  // Returns: logits of every token, [tokens][vocab].
  std::vector<std::vector<float>> step(std::span<const Piece> pieces);

  // The same step.
  // Returns: logits of the given rows only, [rows][vocab].
  std::vector<std::vector<float>> step_rows(std::span<const Piece> pieces,
                                            std::span<const int32_t> rows);

  // Runs one sequence alone, in slot 0 from its beginning, `chunk` tokens per step.
  // Returns: logits of every token, [tokens][vocab].
  std::vector<std::vector<float>> sequence(std::span<const int32_t> tokens, int32_t chunk,
                                           const LoraAdapter* adapter = nullptr);

  // Returns: `count` greedy tokens after a prompt, computed in slot 0.
  std::vector<int32_t> greedy(std::span<const int32_t> prompt, int count);

  // Removes a slot's sequence and releases its pages.
  void clear(int32_t slot);

  Transformer& model() { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  KvArena& arena() { return *arena_; }
  Stream stream() { return pool_.stream(); }

 private:
  void grow(int32_t slot, int32_t tokens);

  ThreadPool pool_;
  const Backend& backend_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<KvArena> arena_;
  int32_t first_position_;
  std::vector<int32_t> lengths_;  // tokens stored in each slot
};

int32_t index_of_largest(std::span<const float> values);

// Returns: the instruction sets that this machine supports.
std::vector<CpuIsa> cpu_isas();

}  // namespace tessera
