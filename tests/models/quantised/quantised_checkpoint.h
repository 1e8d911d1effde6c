#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "files/safetensors.h"
#include "kernels/matrix/e4m3.h"
#include "nlohmann/json.hpp"
#include "tests/models/temporary_directory.h"

// A small Llama in the formats of quantised safetensors checkpoints, packed by plain rules. Its
// integers and scales are those of golden.py, which packs them with each method's own package.
namespace tessera {

inline constexpr int64_t kQuantisedHidden = 128;
inline constexpr int64_t kQuantisedVocab = 96;

struct QuantisedModule {
  const char* name;
  int64_t rows;
  int64_t cols;
};
inline constexpr QuantisedModule kQuantisedModules[] = {
    {"self_attn.q_proj", 128, 128}, {"self_attn.k_proj", 64, 128}, {"self_attn.v_proj", 64, 128},
    {"self_attn.o_proj", 128, 128}, {"mlp.gate_proj", 256, 128},   {"mlp.up_proj", 256, 128},
    {"mlp.down_proj", 128, 256}};

inline std::string weight_name(const QuantisedModule& module) {
  return std::string("model.layers.0.") + module.name + ".weight";
}

// Number i of a stream, as golden.py computes it.
inline uint32_t stream_number(uint32_t stream, int64_t i) {
  uint32_t x = static_cast<uint32_t>(i) * 2654435761u + stream * 40503u + 12345u;
  x = (x ^ x >> 15) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  return x ^ x >> 16;
}

inline std::string fnv_of(std::span<const std::byte> bytes) {
  uint64_t value = 0xCBF29CE484222325u;
  for (const std::byte byte : bytes) {
    value = (value ^ static_cast<uint64_t>(byte)) * 0x100000001B3u;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016lx", static_cast<unsigned long>(value));
  return text;
}

// Integers and scales of one matrix, before a method packs them.
struct QuantisedNumbers {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t bits = 0;
  int64_t groups = 0;
  bool fp8 = false;
  int64_t scale_outputs = 1;    // outputs that share a scale
  std::vector<uint32_t> codes;  // [rows, cols]
  std::vector<uint32_t> zeros;  // [rows, groups]
  std::vector<float> scales;    // [rows / scale_outputs, groups]
  std::vector<int32_t> g_idx;   // [cols]

  QuantisedNumbers(uint32_t index, const QuantisedModule& module, const nlohmann::json& one)
      : rows(module.rows), cols(module.cols), bits(one.at("bits")), fp8(one.value("fp8", false)) {
    const int64_t size = one.at("group");
    const int64_t group = size == 0 ? cols : std::min(size, cols);
    groups = cols / group;
    scale_outputs = one.value("scale_outputs", int64_t{1});
    if (scale_outputs == 0) scale_outputs = rows;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const uint32_t code = stream_number(4 * index, i) % (1u << bits);
      codes.push_back(fp8 && code % 128 == 127 ? code - 1 : code);
    }
    const bool has_zeros = one.value("zeros", false);
    for (int64_t i = 0; i < rows * groups; ++i) {
      zeros.push_back(has_zeros ? 1 + stream_number(4 * index + 1, i) % 15 : 1u << (bits - 1));
    }
    const bool small_rows = one.value("small_rows", false);
    for (int64_t i = 0; i < div_ceil(rows, scale_outputs) * groups; ++i) {
      const auto scale = static_cast<float>(64 + stream_number(4 * index + 2, i) % 64);
      scales.push_back(std::ldexp(
          scale, (bits == 4 ? -13 : -17) - (small_rows && i / groups % 5 == 0 ? 14 : 0)));
    }
    std::vector<int64_t> order(static_cast<size_t>(cols));
    std::iota(order.begin(), order.end(), 0);
    if (one.value("order", false)) {
      std::ranges::stable_sort(order, {},
                               [&](int64_t i) { return stream_number(4 * index + 3, i); });
    }
    g_idx.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      g_idx[static_cast<size_t>(order[i])] = static_cast<int32_t>(static_cast<int64_t>(i) / group);
    }
  }

  uint32_t code(int64_t row, int64_t col) const {
    return codes[static_cast<size_t>(row * cols + col)];
  }
  uint32_t zero(int64_t row, int64_t group) const {
    return zeros[static_cast<size_t>(row * groups + group)];
  }
  float scale(int64_t row, int64_t group) const {
    return scales[static_cast<size_t>(row / scale_outputs * groups + group)];
  }
  float weight(int64_t row, int64_t col) const {
    const int64_t group = g_idx[static_cast<size_t>(col)];
    const uint32_t own = code(row, col);
    return scale(row, group) *
           (fp8 ? to_f32(e4m3{static_cast<uint8_t>(own)})
                : static_cast<float>(static_cast<int32_t>(own - zero(row, group))));
  }
  std::vector<float> weights() const {
    std::vector<float> all;
    for (int64_t i = 0; i < rows * cols; ++i) all.push_back(weight(i / cols, i % cols));
    return all;
  }
};

template <class T>
std::vector<std::byte> bytes_of_values(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Returns: words [extent 0, extent 1] whose numbers number_at(row, col, neighbour) gives.
template <class NumberAt>
NamedTensor words_tensor(const std::string& name, TensorShape shape, int64_t bits,
                         const NumberAt& number_at) {
  std::vector<uint32_t> words;
  for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    uint32_t word = 0;
    for (int64_t j = 0; j < 32 / bits; ++j) {
      const uint32_t number = number_at(i / shape[1], i % shape[1], j) & ((1u << bits) - 1);
      word |= number << (bits * j);
    }
    words.push_back(word);
  }
  return {name, TensorType::i32, std::move(shape), bytes_of_values(words)};
}

inline NamedTensor floats_tensor(const std::string& name, TensorShape shape, TensorType type,
                                 const std::vector<float>& values) {
  if (type == TensorType::f32) return {name, type, std::move(shape), bytes_of_values(values)};
  std::vector<uint16_t> halves;
  for (const float value : values) {
    halves.push_back(type == TensorType::f16 ? to_f16(value).bits : to_bf16(value).bits);
  }
  return {name, type, std::move(shape), bytes_of_values(halves)};
}

// Writes one case of golden.py.
class QuantisedCheckpoint {
 public:
  explicit QuantisedCheckpoint(const nlohmann::json& golden)
      : config_(golden.at("config")), case_(golden.at("case")) {
    for (uint32_t i = 0; i < std::size(kQuantisedModules); ++i) {
      numbers_.emplace_back(i, kQuantisedModules[i], case_);
      pack(std::string("model.layers.0.") + kQuantisedModules[i].name + ".", numbers_.back());
    }
    add_rest();
  }

  const std::vector<QuantisedNumbers>& numbers() const { return numbers_; }
  std::vector<NamedTensor>& tensors() { return tensors_; }
  nlohmann::json& quantization() { return config_; }
  NamedTensor& tensor(const std::string& ending) {
    return *std::ranges::find_if(
        tensors_, [&](const NamedTensor& one) { return one.name.ends_with(ending); });
  }

  void write(const std::filesystem::path& directory) const {
    const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                   {"vocab_size", kQuantisedVocab},
                                   {"hidden_size", kQuantisedHidden},
                                   {"intermediate_size", 256},
                                   {"num_hidden_layers", 1},
                                   {"num_attention_heads", 4},
                                   {"num_key_value_heads", 2},
                                   {"head_dim", 32},
                                   {"max_position_embeddings", 128},
                                   {"rms_norm_eps", 1e-5},
                                   {"rope_theta", 10000.0},
                                   {"quantization_config", config_}};
    write_file(directory / "config.json", config.dump());
    EXPECT_TRUE(write_safetensors(directory / "model.safetensors", tensors_).ok());
  }

 private:
  TensorType scale_type() const {
    const std::string type = case_.at("scales");
    return type == "F32" ? TensorType::f32 : type == "F16" ? TensorType::f16 : TensorType::bf16;
  }

  void pack(const std::string& prefix, const QuantisedNumbers& numbers) {
    const std::string method = config_.at("quant_method");
    if (method == "fp8") return pack_fp8(prefix, numbers);
    if (method == "compressed-tensors") return pack_compressed_tensors(prefix, numbers);
    const int64_t per = 32 / numbers.bits;
    const bool awq = method == "awq";
    constexpr int64_t kAwq[] = {0, 2, 4, 6, 1, 3, 5, 7};  // neighbours in the order of their bits
    const auto neighbour = [&](int64_t j) { return awq ? kAwq[j] : j; };
    const uint32_t less = config_.value("checkpoint_format", "gptq") == "gptq" && !awq ? 1 : 0;
    tensors_.push_back(words_tensor(prefix + "qweight",
                                    awq ? TensorShape{numbers.cols, numbers.rows / per}
                                        : TensorShape{numbers.cols / per, numbers.rows},
                                    numbers.bits, [&](int64_t row, int64_t col, int64_t j) {
                                      return awq ? numbers.code(col * per + neighbour(j), row)
                                                 : numbers.code(col, row * per + j);
                                    }));
    tensors_.push_back(words_tensor(prefix + "qzeros", {numbers.groups, numbers.rows / per},
                                    numbers.bits, [&](int64_t row, int64_t col, int64_t j) {
                                      return numbers.zero(col * per + neighbour(j), row) - less;
                                    }));
    std::vector<float> scales;
    for (int64_t i = 0; i < numbers.groups * numbers.rows; ++i) {
      scales.push_back(numbers.scale(i % numbers.rows, i / numbers.rows));
    }
    tensors_.push_back(
        floats_tensor(prefix + "scales", {numbers.groups, numbers.rows}, scale_type(), scales));
    if (!awq) {
      tensors_.push_back(
          {prefix + "g_idx", TensorType::i32, {numbers.cols}, bytes_of_values(numbers.g_idx)});
    }
  }

  void pack_fp8(const std::string& prefix, const QuantisedNumbers& numbers) {
    add_bytes(prefix, numbers, TensorType::f8_e4m3);
    const bool blocks = config_.contains("weight_block_size");
    const int64_t rows = std::ssize(numbers.scales) / numbers.groups;
    tensors_.push_back(floats_tensor(prefix + (blocks ? "weight_scale_inv" : "weight_scale"),
                                     blocks ? TensorShape{rows, numbers.groups} : TensorShape{},
                                     scale_type(), numbers.scales));
    if (!blocks)
      tensors_.push_back(floats_tensor(prefix + "input_scale", {}, TensorType::f32, {1}));
  }

  void pack_compressed_tensors(const std::string& prefix, const QuantisedNumbers& numbers) {
    const int64_t per = 32 / numbers.bits;
    if (numbers.fp8 || case_.value("bytes", false)) {
      add_bytes(prefix, numbers, numbers.fp8 ? TensorType::f8_e4m3 : TensorType::i8);
    } else {
      tensors_.push_back(words_tensor(
          prefix + "weight_packed", {numbers.rows, numbers.cols / per}, numbers.bits,
          [&](int64_t row, int64_t col, int64_t j) { return numbers.code(row, col * per + j); }));
      tensors_.push_back({prefix + "weight_shape",
                          TensorType::i64,
                          {2},
                          bytes_of_values(std::vector<int64_t>{numbers.rows, numbers.cols})});
    }
    if (case_.value("zeros", false)) {
      tensors_.push_back(words_tensor(
          prefix + "weight_zero_point", {numbers.rows / per, numbers.groups}, numbers.bits,
          [&](int64_t row, int64_t col, int64_t j) { return numbers.zero(row * per + j, col); }));
    }
    if (case_.value("order", false)) {
      tensors_.push_back({prefix + "weight_g_idx",
                          TensorType::i32,
                          {numbers.cols},
                          bytes_of_values(numbers.g_idx)});
    }
    tensors_.push_back(floats_tensor(prefix + "weight_scale", {numbers.rows, numbers.groups},
                                     scale_type(), numbers.scales));
  }

  // I8 has a sign.
  void add_bytes(const std::string& prefix, const QuantisedNumbers& numbers, TensorType type) {
    std::vector<uint8_t> bytes;
    for (const uint32_t code : numbers.codes) {
      bytes.push_back(static_cast<uint8_t>(type == TensorType::i8 ? code ^ 0x80 : code));
    }
    tensors_.push_back(
        {prefix + "weight", type, {numbers.rows, numbers.cols}, bytes_of_values(bytes)});
  }

  void add_rest() {
    const auto add_table = [&](const char* name, uint32_t stream, float divisor) {
      std::vector<float> values;
      for (int64_t i = 0; i < kQuantisedVocab * kQuantisedHidden; ++i) {
        values.push_back(
            static_cast<float>(static_cast<int32_t>(stream_number(stream, i) % 256) - 128) /
            divisor);
      }
      tensors_.push_back(
          floats_tensor(name, {kQuantisedVocab, kQuantisedHidden}, TensorType::f16, values));
    };
    add_table("model.embed_tokens.weight", 1000, 128);
    add_table("lm_head.weight", 1001, 1024);
    for (const char* norm : {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                             "model.layers.0.post_attention_layernorm.weight"}) {
      tensors_.push_back(floats_tensor(norm, {kQuantisedHidden}, TensorType::f16,
                                       std::vector<float>(kQuantisedHidden, 1.0f)));
    }
  }

  nlohmann::json config_;
  nlohmann::json case_;
  std::vector<QuantisedNumbers> numbers_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace tessera
