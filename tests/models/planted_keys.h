#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera {

// Keys and values that are hard to quantise, planted in a copy of the shipped model.
struct PlantedKeys {
  // Pairs of key channels times 2^exponent, and those of the queries divided by it. The function of
  // the model stays.
  std::vector<int32_t> scaled_pairs = {};
  int32_t exponent = 0;
  // A bias of this size in both channels of some pairs, as Qwen2 has. Softmax does not see it in
  // pairs that hardly turn within a context.
  std::vector<int32_t> biased_pairs = {};
  float bias = 0;
  // Channels of the values times 2^value_exponent, and the columns that read them divided by it.
  // The function of the model stays.
  std::vector<int32_t> scaled_values = {};
  int32_t value_exponent = 0;
};

class PlantedModel {
 public:
  // Writes the copy to `folder`, which exists.
  static void write(const PlantedKeys& keys, const std::filesystem::path& folder) {
    const std::filesystem::path source =
        std::filesystem::path(TESSERA_SOURCE_DIR) / "models/checkpoints/tessera-tiny";
    std::filesystem::copy(source, folder,
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    PlantedModel model(read(source / "model.safetensors"));
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      model.scale(layer, keys);
      if (!keys.biased_pairs.empty()) model.add_biases(layer, keys);
    }
    model.save(folder / "model.safetensors");
    if (!keys.biased_pairs.empty()) {
      auto config = nlohmann::json::parse(read(source / "config.json"));
      config["architectures"] = {"Qwen2ForCausalLM"};
      config["model_type"] = "qwen2";
      std::ofstream(folder / "config.json") << config.dump();
    }
  }

 private:
  static constexpr int32_t kLayers = 6;
  static constexpr int32_t kHeads = 4;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kHeadDim = 128;
  static constexpr int32_t kHidden = 256;

  explicit PlantedModel(const std::string& file) {
    uint64_t header = 0;
    std::copy_n(file.data(), sizeof(header), reinterpret_cast<char*>(&header));
    tensors_ = nlohmann::json::parse(file.substr(sizeof(header), header));
    data_ = file.substr(sizeof(header) + header);
  }

  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static std::string name(int32_t layer, const char* tensor) {
    return "model.layers." + std::to_string(layer) + ".self_attn." + tensor;
  }

  void scale(int32_t layer, const PlantedKeys& keys) {
    for (const int32_t pair : keys.scaled_pairs) {
      for (const int32_t channel : {pair, pair + kHeadDim / 2}) {
        scale_rows(name(layer, "k_proj.weight"), kKvHeads, channel, keys.exponent);
        scale_rows(name(layer, "q_proj.weight"), kHeads, channel, -keys.exponent);
      }
    }
    for (const int32_t channel : keys.scaled_values) {
      scale_rows(name(layer, "v_proj.weight"), kKvHeads, channel, keys.value_exponent);
      scale_columns(name(layer, "o_proj.weight"), channel, -keys.value_exponent);
    }
  }

  // Multiplies a row of each head by a power of two.
  void scale_rows(const std::string& tensor, int32_t heads, int32_t channel, int32_t exponent) {
    for (int32_t head = 0; head < heads; ++head) {
      for (int32_t column = 0; column < kHidden; ++column) {
        scale_element(tensor, (int64_t{head} * kHeadDim + channel) * kHidden + column, exponent);
      }
    }
  }
  // The same for a column of each head.
  void scale_columns(const std::string& tensor, int32_t channel, int32_t exponent) {
    for (int64_t row = 0; row < kHidden; ++row) {
      for (int32_t head = 0; head < kHeads; ++head) {
        scale_element(tensor, (row * kHeads + head) * kHeadDim + channel, exponent);
      }
    }
  }
  // Adds to the exponent of a bf16.
  void scale_element(const std::string& tensor, int64_t element, int32_t exponent) {
    const auto begin = tensors_[tensor]["data_offsets"][0].get<size_t>();
    auto* bits = reinterpret_cast<uint16_t*>(data_.data() + begin) + element;
    if ((*bits & 0x7f80) != 0) *bits = static_cast<uint16_t>(*bits + exponent * 0x80);
  }

  void add_biases(int32_t layer, const PlantedKeys& keys) {
    std::vector<float> of_keys(kKvHeads * kHeadDim, 0.0f);
    for (int32_t head = 0; head < kKvHeads; ++head) {
      for (const int32_t pair : keys.biased_pairs) {
        of_keys[static_cast<size_t>(head * kHeadDim + pair)] = keys.bias;
        of_keys[static_cast<size_t>(head * kHeadDim + pair + kHeadDim / 2)] = -keys.bias;
      }
    }
    add(name(layer, "q_proj.bias"), std::vector<float>(kHeads * kHeadDim, 0.0f));
    add(name(layer, "k_proj.bias"), of_keys);
    add(name(layer, "v_proj.bias"), std::vector<float>(kKvHeads * kHeadDim, 0.0f));
  }

  void add(const std::string& tensor, const std::vector<float>& numbers) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
    tensors_[tensor] = {
        {"dtype", "F32"}, {"shape", {numbers.size()}}, {"data_offsets", {begin, data_.size()}}};
  }

  void save(const std::filesystem::path& path) const {
    std::string header = tensors_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t bytes = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    file << header << data_;
  }

  nlohmann::json tensors_;
  std::string data_;
};

}  // namespace tessera
