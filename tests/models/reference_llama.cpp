#include "tests/models/reference_llama.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"

namespace tessera {
namespace {

constexpr std::string_view kLanguage = "language_model.";  // beside an image encoder

std::vector<double> to_f64(const StoredTensor& stored) {
  std::vector<float> values(stored.bytes.size() / static_cast<size_t>(bytes_of(stored.type)));
  read_f32(stored, 0, values);
  return {values.begin(), values.end()};
}

std::string layer_tensor(int layer, const std::string& name) {
  return "model.layers." + std::to_string(layer) + "." + name;
}

void add(std::vector<double>& to, const std::vector<double>& what, double factor = 1) {
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] += factor * what[i];
  }
}

// Phi-3 stores q, k and v as one tensor, and gate and up as another.
void split_fused(const ModelConfig& config, std::map<std::string, std::vector<double>>& tensors) {
  const auto split = [&](const std::string& fused, const std::vector<std::string>& names,
                         const std::vector<int32_t>& rows) {
    const auto found = tensors.find(fused);
    if (found == tensors.end()) return;
    auto from = found->second.begin();
    for (size_t i = 0; i < names.size(); ++i) {
      const auto end = from + std::ptrdiff_t{rows[i]} * config.hidden;
      tensors[names[i]] = std::vector<double>(from, end);
      from = end;
    }
  };
  for (int32_t i = 0; i < config.layers; ++i) {
    const std::string attention = layer_tensor(i, "self_attn.");
    split(attention + "qkv_proj.weight",
          {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
          {config.query_width(), config.kv_width(), config.kv_width()});
    const std::string mlp = layer_tensor(i, "mlp.");
    split(mlp + "gate_up_proj.weight", {mlp + "gate_proj.weight", mlp + "up_proj.weight"},
          {config.ffn, config.ffn});
  }
}

// Granite stores the matrices of all experts of a layer as one tensor, gate and up of each expert
// behind each other. They get the names that Qwen has.
void split_granite(const ModelConfig& config, std::map<std::string, std::vector<double>>& tensors) {
  const auto part = [&](const std::string& whole, int64_t index, int64_t parts,
                        const std::string& name) {
    const std::vector<double>& from = tensors.at(whole);
    const auto count = static_cast<std::ptrdiff_t>(from.size()) / parts;
    tensors[name] =
        std::vector<double>(from.begin() + index * count, from.begin() + (index + 1) * count);
  };
  for (int32_t i = 0; i < config.layers; ++i) {
    const std::string block = layer_tensor(i, "block_sparse_moe.");
    if (!tensors.contains(block + "input_linear.weight")) return;
    tensors[block + "gate.weight"] = tensors.at(block + "router.layer.weight");
    for (int64_t expert = 0; expert < config.experts; ++expert) {
      const std::string own = block + "experts." + std::to_string(expert) + ".";
      const int64_t parts = 2 * int64_t{config.experts};
      part(block + "input_linear.weight", 2 * expert, parts, own + "gate_proj.weight");
      part(block + "input_linear.weight", 2 * expert + 1, parts, own + "up_proj.weight");
      part(block + "output_linear.weight", expert, config.experts, own + "down_proj.weight");
    }
    const std::string shared = layer_tensor(i, "shared_mlp.");
    if (!tensors.contains(shared + "input_linear.weight")) continue;
    part(shared + "input_linear.weight", 0, 2, block + "shared_expert.gate_proj.weight");
    part(shared + "input_linear.weight", 1, 2, block + "shared_expert.up_proj.weight");
    part(shared + "output_linear.weight", 0, 1, block + "shared_expert.down_proj.weight");
  }
}

double activated(double x, Activation activation) {
  switch (activation) {
    case Activation::silu:
      break;
    case Activation::gelu:
      return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  }
  return x / (1 + std::exp(-x));
}

}  // namespace

ReferenceLlama::ReferenceLlama(const std::filesystem::path& directory) {
  config_ = read_model_config(directory).value();
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") {
      const SafetensorsFile file = SafetensorsFile::open(entry.path()).value();
      for (const auto& [name, stored] : file.tensors()) {
        const bool nested = name.starts_with(kLanguage);
        tensors_[nested ? name.substr(kLanguage.size()) : name] = to_f64(stored);
      }
    }
  }
  split_fused(config_, tensors_);
  split_granite(config_, tensors_);
}

const ReferenceLlama::Vector& ReferenceLlama::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  TESSERA_CHECK(found != tensors_.end(), name.c_str());
  return found->second;
}

bool ReferenceLlama::has(const std::string& name) const {
  return tensors_.contains(name);
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
  if (has(name + ".bias")) {
    add(out, tensor(name + ".bias"));
  }
  return out;
}

// Gemma has norms behind its blocks too.
bool ReferenceLlama::is_gemma() const {
  return has(layer_tensor(0, "pre_feedforward_layernorm.weight"));
}

// Gemma stores the weights of norms less one.
ReferenceLlama::Vector ReferenceLlama::norm(const std::string& name, const Vector& in) const {
  double squares = 0;
  for (const double value : in) {
    squares += value * value;
  }
  const double scale =
      1 / std::sqrt(squares / static_cast<double>(in.size()) + double{config_.norm_epsilon});
  Vector out = tensor(name);
  for (size_t i = 0; i < in.size(); ++i) {
    out[i] = (out[i] + (is_gemma() ? 1 : 0)) * in[i] * scale;
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

double ReferenceLlama::frequency(int layer, size_t pair) const {
  const bool local = config_.local_rope_theta > 0 && config_.window_of(layer) > 0;
  const RopeScaling scaling = local ? RopeScaling() : config_.rope_scaling;
  const double theta = local ? config_.local_rope_theta : config_.rope_theta;
  const double own = 1 / std::pow(theta, 2 * static_cast<double>(pair) / config_.rotary_width());
  const double original = scaling.original_context;
  const double wavelength = 2 * std::numbers::pi / own;
  switch (scaling.kind) {
    case RopeScaling::Kind::linear:
      return own / scaling.factor;
    case RopeScaling::Kind::llama3: {
      if (wavelength > original / scaling.low_freq_factor) return own / scaling.factor;
      if (wavelength < original / scaling.high_freq_factor) return own;
      const double smooth = (original / wavelength - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
      return (1 - smooth) * own / scaling.factor + smooth * own;
    }
    case RopeScaling::Kind::yarn: {
      // The pair that turns `turns` times in the original context, rounded outwards.
      const auto pair_of = [&](double turns) {
        return config_.rotary_width() / 2.0 * std::log(original / (2 * std::numbers::pi * turns)) /
               std::log(theta);
      };
      const double first = std::max(0.0, std::floor(pair_of(scaling.beta_fast)));
      const double last =
          std::min(config_.rotary_width() - 1.0, std::ceil(pair_of(scaling.beta_slow)));
      const double at = (static_cast<double>(pair) - first) / (last - first);
      const double divided = std::min(1.0, std::max(0.0, at));
      return own * ((1 - divided) + divided / scaling.factor);
    }
    case RopeScaling::Kind::longrope:
      return own / (config_.context > scaling.original_context ? scaling.long_factors
                                                               : scaling.short_factors)[pair];
    default:
      return own;
  }
}

void ReferenceLlama::rotate(Vector& heads, int layer, int position) const {
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  const auto half = static_cast<size_t>(config_.rotary_width()) / 2;
  for (size_t pair = 0; pair < half; ++pair) {
    const double angle = position * frequency(layer, pair);
    const double cos = config_.rope_scaling.attention_factor * std::cos(angle);
    const double sin = config_.rope_scaling.attention_factor * std::sin(angle);
    for (size_t head = 0; head < heads.size(); head += head_dim) {
      const double first = heads[head + pair];
      const double second = heads[head + pair + half];
      heads[head + pair] = first * cos - second * sin;
      heads[head + pair + half] = second * cos + first * sin;
    }
  }
}

double ReferenceLlama::query_factor(int position) const {
  const RopeScaling& scaling = config_.rope_scaling;
  return 1 + scaling.query_growth * std::log1p(std::floor(position / scaling.original_context));
}

ReferenceLlama::Vector ReferenceLlama::attend(int layer, const LayerCache& cache,
                                              const Vector& queries) const {
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  const auto group = static_cast<size_t>(config_.heads / config_.kv_heads);
  const size_t tokens = cache.keys.size();
  const auto sliding_window = static_cast<size_t>(config_.window_of(layer));
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
      const double factor = config_.multipliers.attention;
      scores.push_back(score * (factor > 0 ? factor : 1 / std::sqrt(config_.head_dim)));
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
  if (has(layer_tensor(layer, "self_attn.q_norm.weight"))) {
    queries = norm_heads(layer_tensor(layer, "self_attn.q_norm.weight"), queries);
    keys = norm_heads(layer_tensor(layer, "self_attn.k_norm.weight"), keys);
  }
  if (config_.rotates(layer)) {
    rotate(queries, layer, position);
    rotate(keys, layer, position);
  }
  for (double& query : queries) {
    query *= query_factor(position);
  }
  cache.keys.push_back(std::move(keys));
  cache.values.push_back(project(layer, "v_proj", in));
  return project(layer, "o_proj", attend(layer, cache, queries));
}

ReferenceLlama::Vector ReferenceLlama::swiglu(const Vector& gate, const Vector& up) const {
  Vector out(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    out[i] = activated(gate[i], config_.activation) * up[i];
  }
  return out;
}

// Mixtral calls the three matrices of an expert w1 (gate), w2 (down) and w3 (up).
ReferenceLlama::Vector ReferenceLlama::expert(const std::string& name, const Vector& in) const {
  const bool numbered = has(name + "w1.weight");
  const auto part = [&](const char* number, const char* word) {
    return name + (numbered ? number : word) + ".weight";
  };
  return product(part("w2", "down_proj"),
                 swiglu(product(part("w1", "gate_proj"), in), product(part("w3", "up_proj"), in)));
}

ReferenceLlama::Vector ReferenceLlama::experts(int layer, const Vector& in) const {
  const bool mixtral = has(layer_tensor(layer, "block_sparse_moe.gate.weight"));
  const std::string block = layer_tensor(layer, mixtral ? "block_sparse_moe." : "mlp.");
  const Vector logits = product(block + "gate.weight", in);
  std::vector<std::pair<double, size_t>> ordered;
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    ordered.emplace_back(std::exp(logits[i]), i);
    sum += std::exp(logits[i]);
  }
  std::sort(ordered.rbegin(), ordered.rend());
  ordered.resize(static_cast<size_t>(config_.chosen_experts));
  if (config_.normalise_experts) {
    sum = 0;
    for (const auto& [share, index] : ordered) sum += share;
  }
  Vector out(in.size());
  for (const auto& [share, index] : ordered) {
    add(out, expert(block + "experts." + std::to_string(index) + ".", in), share / sum);
  }
  if (!has(block + "shared_expert.up_proj.weight")) return out;
  const bool gated = has(block + "shared_expert_gate.weight");
  const double gate = gated ? product(block + "shared_expert_gate.weight", in).front() : 0;
  add(out, expert(block + "shared_expert.", in), gated ? 1 / (1 + std::exp(-gate)) : 1);
  return out;
}

ReferenceLlama::Vector ReferenceLlama::feed_forward(int layer, const Vector& in) const {
  if (config_.experts > 0) return experts(layer, in);
  const auto multiply = [&](const char* which, const Vector& by) {
    const std::string name = layer_tensor(layer, std::string("mlp.") + which);
    Vector out = product(name + ".weight", by);
    if (has(name + ".bias")) add(out, tensor(name + ".bias"));
    return out;
  };
  return multiply("down_proj", swiglu(multiply("gate_proj", in), multiply("up_proj", in)));
}

void ReferenceLlama::run_layer(int layer, int position, LayerCache& cache, Vector& hidden) const {
  const auto norm_of = [&](const char* which, const Vector& in) {
    return norm(layer_tensor(layer, which) + "_layernorm.weight", in);
  };
  Vector attended = attention(layer, norm_of("input", hidden), position, cache);
  if (is_gemma()) attended = norm_of("post_attention", attended);
  add(hidden, attended, config_.multipliers.residual);
  const char* before = is_gemma() ? "pre_feedforward" : "post_attention";
  Vector fed = feed_forward(layer, norm_of(before, hidden));
  if (is_gemma()) fed = norm_of("post_feedforward", fed);
  add(hidden, fed, config_.multipliers.residual);
}

std::vector<std::vector<double>> ReferenceLlama::logits(std::span<const int32_t> tokens) const {
  const auto hidden_size = static_cast<std::ptrdiff_t>(config_.hidden);
  const Vector& table = tensor("model.embed_tokens.weight");
  std::vector<LayerCache> caches(static_cast<size_t>(config_.layers));
  std::vector<Vector> all;
  for (size_t position = 0; position < tokens.size(); ++position) {
    const auto row = table.begin() + tokens[position] * hidden_size;
    Vector hidden(row, row + hidden_size);
    for (double& value : hidden) {
      value *= config_.multipliers.embedding;
    }
    for (int layer = 0; layer < config_.layers; ++layer) {
      run_layer(layer, static_cast<int>(position), caches[static_cast<size_t>(layer)], hidden);
    }
    const std::string head = config_.tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
    all.push_back(product(head, norm("model.norm.weight", hidden)));
    for (double& logit : all.back()) {
      logit /= config_.multipliers.logits_divisor;
    }
  }
  return all;
}

}  // namespace tessera
