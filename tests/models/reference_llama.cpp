#include "tests/models/reference_llama.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/check.h"
#include "models/checkpoint.h"

namespace tessera {
namespace {

std::vector<double> to_f64(const StoredTensor& stored) {
  std::vector<float> values(stored.bytes.size() / static_cast<size_t>(bytes_of(stored.type)));
  read_f32(stored, 0, values);
  return {values.begin(), values.end()};
}

std::string layer_tensor(int layer, const std::string& name) {
  return "model.layers." + std::to_string(layer) + "." + name;
}

void add(std::vector<double>& to, const std::vector<double>& what) {
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] += what[i];
  }
}

}  // namespace

ReferenceLlama::ReferenceLlama(const std::filesystem::path& directory) {
  config_ = read_model_config(directory).value();
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") {
      const SafetensorsFile file = SafetensorsFile::open(entry.path()).value();
      for (const auto& [name, stored] : file.tensors()) {
        tensors_[name] = to_f64(stored);
      }
    }
  }
}

const ReferenceLlama::Vector& ReferenceLlama::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  TESSERA_CHECK(found != tensors_.end(), name.c_str());
  return found->second;
}

ReferenceLlama::Vector ReferenceLlama::product(const std::string& name, const Vector& in) const {
  const Vector& weight = tensor(name);
  Vector out(weight.size() / in.size());
  for (size_t row = 0; row < out.size(); ++row) {
    for (size_t i = 0; i < in.size(); ++i) {
      out[row] += weight[row * in.size() + i] * in[i];
    }
  }
  return out;
}

ReferenceLlama::Vector ReferenceLlama::project(int layer, const char* which,
                                               const Vector& in) const {
  const std::string name = layer_tensor(layer, std::string("self_attn.") + which);
  Vector out = product(name + ".weight", in);
  if (config_.architecture == "Qwen2ForCausalLM") {
    add(out, tensor(name + ".bias"));
  }
  return out;
}

ReferenceLlama::Vector ReferenceLlama::norm(const std::string& name, const Vector& in) const {
  double squares = 0;
  for (const double value : in) {
    squares += value * value;
  }
  const double scale =
      1 / std::sqrt(squares / static_cast<double>(in.size()) + double{config_.norm_epsilon});
  Vector out = tensor(name);
  for (size_t i = 0; i < in.size(); ++i) {
    out[i] *= in[i] * scale;
  }
  return out;
}

ReferenceLlama::Vector ReferenceLlama::norm_heads(const std::string& name,
                                                  const Vector& heads) const {
  Vector all;
  for (auto head = heads.begin(); head != heads.end(); head += config_.head_dim) {
    const Vector normed = norm(name, Vector(head, head + config_.head_dim));
    all.insert(all.end(), normed.begin(), normed.end());
  }
  return all;
}

void ReferenceLlama::rotate(Vector& heads, int position) const {
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  const RopeScaling& scaling = config_.rope_scaling;
  for (size_t pair = 0; pair < head_dim / 2; ++pair) {
    double frequency =
        1 / std::pow(double{config_.rope_theta}, 2 * static_cast<double>(pair) / config_.head_dim);
    if (scaling.kind == RopeScaling::Kind::linear) {
      frequency /= scaling.factor;
    } else if (scaling.kind == RopeScaling::Kind::llama3) {
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double original = scaling.original_context;
      if (wavelength > original / scaling.low_freq_factor) {
        frequency /= scaling.factor;
      } else if (wavelength >= original / scaling.high_freq_factor) {
        const double smooth = (original / wavelength - scaling.low_freq_factor) /
                              (scaling.high_freq_factor - scaling.low_freq_factor);
        frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency;
      }
    }
    const double cos = std::cos(position * frequency);
    const double sin = std::sin(position * frequency);
    for (size_t head = 0; head < heads.size(); head += head_dim) {
      const double first = heads[head + pair];
      const double second = heads[head + pair + head_dim / 2];
      heads[head + pair] = first * cos - second * sin;
      heads[head + pair + head_dim / 2] = second * cos + first * sin;
    }
  }
}

ReferenceLlama::Vector ReferenceLlama::attend(const LayerCache& cache,
                                              const Vector& queries) const {
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  const auto group = static_cast<size_t>(config_.heads / config_.kv_heads);
  const size_t tokens = cache.keys.size();
  const auto sliding_window = static_cast<size_t>(config_.sliding_window);
  const size_t first = sliding_window > 0 && tokens > sliding_window ? tokens - sliding_window : 0;
  Vector out(queries.size());
  for (size_t head = 0; head < static_cast<size_t>(config_.heads); ++head) {
    const size_t from = head * head_dim;
    const size_t kv_from = head / group * head_dim;
    Vector scores;
    for (size_t token = first; token < tokens; ++token) {
      double score = 0;
      for (size_t i = 0; i < head_dim; ++i) {
        score += queries[from + i] * cache.keys[token][kv_from + i];
      }
      scores.push_back(score / std::sqrt(static_cast<double>(head_dim)));
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) {
      score = std::exp(score - largest);
      sum += score;
    }
    for (size_t token = first; token < tokens; ++token) {
      for (size_t i = 0; i < head_dim; ++i) {
        out[from + i] += scores[token - first] / sum * cache.values[token][kv_from + i];
      }
    }
  }
  return out;
}

ReferenceLlama::Vector ReferenceLlama::attention(int layer, const Vector& in, int position,
                                                 LayerCache& cache) const {
  Vector queries = project(layer, "q_proj", in);
  Vector keys = project(layer, "k_proj", in);
  if (config_.architecture == "Qwen3ForCausalLM") {
    queries = norm_heads(layer_tensor(layer, "self_attn.q_norm.weight"), queries);
    keys = norm_heads(layer_tensor(layer, "self_attn.k_norm.weight"), keys);
  }
  rotate(queries, position);
  rotate(keys, position);
  cache.keys.push_back(std::move(keys));
  cache.values.push_back(project(layer, "v_proj", in));
  return product(layer_tensor(layer, "self_attn.o_proj.weight"), attend(cache, queries));
}

ReferenceLlama::Vector ReferenceLlama::feed_forward(int layer, const Vector& in) const {
  Vector gate = product(layer_tensor(layer, "mlp.gate_proj.weight"), in);
  const Vector up = product(layer_tensor(layer, "mlp.up_proj.weight"), in);
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  }
  return product(layer_tensor(layer, "mlp.down_proj.weight"), gate);
}

std::vector<std::vector<double>> ReferenceLlama::logits(std::span<const int32_t> tokens) const {
  const auto hidden_size = static_cast<std::ptrdiff_t>(config_.hidden);
  const Vector& table = tensor("model.embed_tokens.weight");
  std::vector<LayerCache> caches(static_cast<size_t>(config_.layers));
  std::vector<Vector> all;
  for (size_t position = 0; position < tokens.size(); ++position) {
    const auto row = table.begin() + tokens[position] * hidden_size;
    Vector hidden(row, row + hidden_size);
    for (int layer = 0; layer < config_.layers; ++layer) {
      const Vector normed = norm(layer_tensor(layer, "input_layernorm.weight"), hidden);
      add(hidden,
          attention(layer, normed, static_cast<int>(position), caches[static_cast<size_t>(layer)]));
      add(hidden, feed_forward(
                      layer, norm(layer_tensor(layer, "post_attention_layernorm.weight"), hidden)));
    }
    const std::string head = config_.tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
    all.push_back(product(head, norm("model.norm.weight", hidden)));
  }
  return all;
}

}  // namespace tessera
