#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/lab/prompt.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/transformer.h"

namespace tessera {
class Tokenizer;
}  // namespace tessera

namespace tessera::lab {

// What one layer gives to its attention in a step. Heads lie side by side in a row.
struct LayerStep {
  int32_t layer = 0;
  int32_t first = 0;                    // position of the first row
  MatrixView<const float> input;        // [tokens, hidden]: q, k and v are products of it
  MatrixView<const float> queries;      // [tokens, heads * head_dim], after RoPE
  MatrixView<const float> keys_before;  // [tokens, kv_heads * head_dim], before RoPE
  MatrixView<const float> keys;         // likewise, after RoPE
  MatrixView<const float> values;
  float scale = 0;        // of q . k
  int32_t window = 0;     // sliding window in tokens; 0: none
  MatrixView<float> out;  // [tokens, heads * head_dim]: to be written
};

// Stands in the place of a layer's KV store and attention.
class LayerHandler {
 public:
  virtual ~LayerHandler() = default;
  virtual void attend(const LayerStep& step) = 0;
};

struct ModelOptions {
  std::filesystem::path model;
  std::optional<WeightFormat> weights = std::nullopt;  // none: as the checkpoint has them
  std::optional<CpuIsa> isa = std::nullopt;            // none: the best of this machine
  int32_t threads = 0;                                 // 0: one for each core
  int32_t context = 0;                                 // tokens of the longest sequence
};

// A real model on the CPU whose attention is the laboratory's. Its other layers are the server's.
// Not thread-safe; one thread uses all models of a process.
class Model {
 public:
  // Errors: those of Transformer::load.
  static absl::StatusOr<std::unique_ptr<Model>> load(const ModelOptions& options);
  virtual ~Model() = default;

  virtual const Shape& shape() const = 0;
  virtual const ModelConfig& config() const = 0;
  virtual std::string device() const = 0;  // "cpu (avx512), 2 threads"
  virtual ThreadPool& pool() = 0;
  virtual int32_t context() const = 0;  // tokens of the longest sequence

  // Computes tokens at positions [first, first + tokens.size()) with the handler's attention, in
  // one step if they are no more than the context of the options. So a method may choose by one
  // layer what the next one sees.
  // Returns: the logits after the last token, [vocab].
  virtual std::vector<float> compute(std::span<const int32_t> tokens, int32_t first,
                                     LayerHandler& handler) = 0;

  // Computes a prompt with full attention. The last ones are kept, and a prompt with the beginning
  // of another computes the rest alone.
  virtual std::shared_ptr<const Prompt> prompt(std::span<const int32_t> tokens) = 0;

  // Applies the layer's RoPE to a row of heads of keys, or takes it back.
  // Requires: a step has been computed.
  virtual void rotate(int32_t layer, int32_t position, std::span<float> heads) const = 0;
  virtual void rotate_back(int32_t layer, int32_t position, std::span<float> heads) const = 0;

  // Computes what the layer's weights make of other inputs.
  // input: [tokens, hidden], in the place of LayerStep::input
  // Requires: a step has been computed.
  struct Projected {
    Rows queries_before;  // [tokens, heads * head_dim], before RoPE
    Rows keys_before;     // [tokens, kv_heads * head_dim], before RoPE
    Rows values;
  };
  virtual Projected project(int32_t layer, const Rows& input) = 0;

  // A second model of the same vocabulary, for methods that need one. Null: none.
  Model* draft = nullptr;
  // For methods with texts of their own, and those that know kinds of tokens. Null: there is none.
  const Tokenizer* tokenizer = nullptr;
};

}  // namespace tessera::lab
