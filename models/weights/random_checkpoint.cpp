#include "models/weights/random_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/matrix/half.h"
#include "models/checkpoint/config_json.h"
#include "models/weights/tensor_table.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

// One step of splitmix64: a good hash of a counter, with the same result on every machine.
uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Approximately normal with variance 1: the sum of four uniform numbers.
float near_normal(uint64_t bits) {
  const uint64_t sum =
      (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
  const double uniform_sum = (static_cast<double>(sum) + 2) / 65536 - 2;  // variance 4 / 12
  return static_cast<float>(uniform_sum * std::sqrt(3.0));
}

struct Spread {
  float mean;
  float deviation;
};

Spread spread(const ExpectedTensor& tensor) {
  if (tensor.shape.size() > 1) {
    return {0, 1 / std::sqrt(static_cast<float>(tensor.shape[1]))};
  }
  if (tensor.plus_one) return {0, 0.1f};
  switch (tensor.slot) {
    case WeightSlot::qkv_bias:
    case WeightSlot::attention_out_bias:
    case WeightSlot::gate_up_bias:
    case WeightSlot::down_bias:
      return {0, 0.25f};
    default:
      return {1, 0.1f};
  }
}

void append(float value, TensorType type, std::byte* out) {
  switch (type) {
    case TensorType::f32:
      std::memcpy(out, &value, 4);
      return;
    case TensorType::f16: {
      const f16 half = to_f16(value);
      std::memcpy(out, &half, 2);
      return;
    }
    default: {
      const bf16 half = to_bf16(value);
      std::memcpy(out, &half, 2);
      return;
    }
  }
}

NamedTensor random_tensor(const ExpectedTensor& expected, uint64_t seed, TensorType type) {
  uint64_t own_seed = seed;
  for (const char letter : expected.name) {
    own_seed = mixed(own_seed ^ static_cast<unsigned char>(letter));
  }
  int64_t count = 1;
  for (const int64_t extent : expected.shape) {
    count *= extent;
  }
  const Spread of = spread(expected);
  const int64_t element = bytes_of(type);
  NamedTensor tensor{expected.name, type, expected.shape, {}};
  tensor.bytes.resize(static_cast<size_t>(count * element));
  for (int64_t i = 0; i < count; ++i) {
    const float normal = near_normal(mixed(own_seed + static_cast<uint64_t>(i)));
    append(of.mean + of.deviation * normal, type, tensor.bytes.data() + i * element);
  }
  return tensor;
}

// Returns: the tensor of a directory that holds these, one after another (StackedTensor).
NamedTensor random_holder(std::span<const ExpectedTensor> held, uint64_t seed, TensorType type) {
  NamedTensor whole = random_tensor(held.front(), seed, type);
  if (held.front().holder.empty()) return whole;
  whole.name = held.front().holder;
  int64_t rows = held.front().shape.front();
  for (const ExpectedTensor& one : held.subspan(1)) {
    const NamedTensor next = random_tensor(one, seed, type);
    whole.bytes.insert(whole.bytes.end(), next.bytes.begin(), next.bytes.end());
    rows += one.shape.front();
  }
  const int64_t experts = held.back().index.expert + 1;  // 0: none
  whole.shape = {rows / std::max<int64_t>(experts, 1), held.front().shape.back()};
  if (experts > 0) whole.shape.insert(whole.shape.begin(), experts);
  return whole;
}

absl::Status write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << "\n";
  file.close();
  return file ? absl::OkStatus()
              : absl::UnavailableError(absl::StrCat(path.string(), ": cannot be written"));
}

// The table's tensors; a tied embedding is listed once, although it has two places.
std::vector<ExpectedTensor> distinct_tensors(const ModelConfig& config) {
  std::set<std::string> seen;
  std::vector<ExpectedTensor> distinct;
  for (ExpectedTensor& tensor : expected_tensors(config)) {
    if (seen.insert(tensor.name).second) {
      distinct.push_back(std::move(tensor));
    }
  }
  return distinct;
}

// Returns: these tensors in groups, one for each tensor of a directory.
std::vector<std::vector<ExpectedTensor>> tensors_by_holder(const ModelConfig& config) {
  std::vector<std::vector<ExpectedTensor>> groups;
  std::map<std::string, size_t> group_of;
  for (ExpectedTensor& tensor : distinct_tensors(config)) {
    const std::string& holder = tensor.holder.empty() ? tensor.name : tensor.holder;
    const auto [found, added] = group_of.emplace(holder, groups.size());
    if (added) groups.emplace_back();
    groups[found->second].push_back(std::move(tensor));
  }
  return groups;
}

}  // namespace

absl::Status write_random_checkpoint(const std::filesystem::path& directory,
                                     const ModelConfig& config, uint64_t seed, TensorType type,
                                     int32_t shards) {
  TESSERA_CHECK(is_readable(type) && shards >= 1, "unreadable type or shards < 1");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(directory.string(), ": ", error.message()));
  }
  TESSERA_RETURN_IF_ERROR(write_text(directory / "config.json", model_config_json(config)));

  const std::vector<std::vector<ExpectedTensor>> tensors = tensors_by_holder(config);
  json weight_map = json::object();
  size_t total_bytes = 0;
  for (int32_t shard = 0; shard < shards; ++shard) {
    const std::string file =
        shards == 1 ? "model.safetensors"
                    : absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, shards);
    std::vector<NamedTensor> held;
    for (size_t i = static_cast<size_t>(shard); i < tensors.size();
         i += static_cast<size_t>(shards)) {
      held.push_back(random_holder(tensors[i], seed, type));
      weight_map[held.back().name] = file;
      total_bytes += held.back().bytes.size();
    }
    TESSERA_RETURN_IF_ERROR(write_safetensors(directory / file, held));
  }
  if (shards == 1) {
    return absl::OkStatus();
  }
  return write_text(
      directory / "model.safetensors.index.json",
      json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}}.dump(2));
}

}  // namespace tessera
