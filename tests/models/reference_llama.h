#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/config/model_config.h"

namespace tessera {

// A second, plain implementation of the model, as oracle of Transformer: f64, dense, one token
// after the other, no pages, no fusion. Tensors are looked up by their Hugging Face names.
class ReferenceLlama {
 public:
  explicit ReferenceLlama(const std::filesystem::path& directory);

  // Returns: logits after every token of one sequence, [tokens][vocab].
  std::vector<std::vector<double>> logits(std::span<const int32_t> tokens) const;

 private:
  using Vector = std::vector<double>;

  struct LayerCache {
    std::vector<Vector> keys;  // [tokens][kv_heads * head_dim]
    std::vector<Vector> values;
  };

  const Vector& tensor(const std::string& name) const;
  bool has(const std::string& name) const;
  Vector product(const std::string& name, const Vector& in) const;
  Vector project(int layer, const char* which, const Vector& in) const;
  bool is_gemma() const;
  Vector norm(const std::string& name, const Vector& in) const;
  Vector norm_heads(const std::string& name, const Vector& heads) const;
  double frequency(int layer, size_t pair) const;
  void rotate(Vector& heads, int layer, int position) const;
  double query_factor(int position) const;
  Vector attend(int layer, const LayerCache& cache, const Vector& queries) const;
  Vector attention(int layer, const Vector& in, int position, LayerCache& cache) const;
  Vector swiglu(const Vector& gate, const Vector& up) const;
  Vector expert(const std::string& name, const Vector& in) const;
  Vector experts(int layer, const Vector& in) const;
  Vector feed_forward(int layer, const Vector& in) const;
  void run_layer(int layer, int position, LayerCache& cache, Vector& hidden) const;

  ModelConfig config_;
  std::map<std::string, Vector> tensors_;  // fused ones in their parts
};

}  // namespace tessera
