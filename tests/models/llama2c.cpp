#include "tests/models/llama2c.h"

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "files/mapped_file.h"
#include "files/safetensors.h"
#include "models/checkpoint/config_json.h"
#include "models/weights/random_checkpoint.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using Floats = std::vector<float>;

struct Header {
  int32_t dim, hidden, layers, heads, kv_heads, vocab, seq_len;
};

// Reads the f32 arrays of the file in order.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Floats take(int64_t count) {
    Floats values(static_cast<size_t>(count));
    const size_t size = values.size() * sizeof(float);
    std::memcpy(values.data(), bytes_.subspan(at_, size).data(), size);
    at_ += size;
    return values;
  }

  // Reads one matrix or vector for each layer.
  std::vector<Floats> take_layers(int32_t layers, int64_t count) {
    std::vector<Floats> all;
    for (int32_t layer = 0; layer < layers; ++layer) {
      all.push_back(take(count));
    }
    return all;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = sizeof(Header);
};

Floats half_split(const Floats& rows, int64_t heads, int64_t cols) {
  const int64_t head_dim = std::ssize(rows) / cols / heads;
  Floats out(rows.size());
  for (int64_t row = 0; row < heads * head_dim; ++row) {
    const int64_t head = row / head_dim;
    const int64_t channel = row % head_dim;
    const int64_t to = head * head_dim + channel / 2 + (channel % 2) * (head_dim / 2);
    std::memcpy(out.data() + to * cols, rows.data() + row * cols,
                static_cast<size_t>(cols) * sizeof(float));
  }
  return out;
}

class TensorList {
 public:
  void add(const std::string& name, TensorShape shape, const Floats& values) {
    NamedTensor tensor{name, TensorType::f32, std::move(shape), {}};
    tensor.bytes.resize(values.size() * sizeof(float));
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    tensors_.push_back(std::move(tensor));
  }
  void add_layers(const std::string& name, const TensorShape& shape,
                  const std::vector<Floats>& layers) {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      add("model.layers." + std::to_string(layer) + "." + name + ".weight", shape, layers[layer]);
    }
  }
  std::span<const NamedTensor> tensors() const { return tensors_; }

 private:
  std::vector<NamedTensor> tensors_;
};

ModelConfig config_of(const Header& header) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab = header.vocab;
  config.hidden = header.dim;
  config.layers = header.layers;
  config.heads = header.heads;
  config.kv_heads = header.kv_heads;
  config.head_dim = header.dim / header.heads;
  config.ffn = header.hidden;
  config.context = header.seq_len;
  config.tied_head = true;
  config.bos_id = 1;
  config.eos_ids = {2};
  return config;
}

}  // namespace

absl::Status convert_llama2c(const std::filesystem::path& file,
                             const std::filesystem::path& directory) {
  TESSERA_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::open(file));
  Header h;
  std::memcpy(&h, mapped.bytes().data(), sizeof(h));
  const int64_t dim = h.dim;
  const int64_t kv = dim / h.heads * h.kv_heads;
  Cursor cursor(mapped.bytes());
  TensorList list;
  list.add("model.embed_tokens.weight", {h.vocab, dim}, cursor.take(h.vocab * dim));
  list.add_layers("input_layernorm", {dim}, cursor.take_layers(h.layers, dim));
  std::vector<Floats> queries = cursor.take_layers(h.layers, dim * dim);
  std::vector<Floats> keys = cursor.take_layers(h.layers, kv * dim);
  for (size_t layer = 0; layer < queries.size(); ++layer) {
    queries[layer] = half_split(queries[layer], h.heads, dim);
    keys[layer] = half_split(keys[layer], h.kv_heads, dim);
  }
  list.add_layers("self_attn.q_proj", {dim, dim}, queries);
  list.add_layers("self_attn.k_proj", {kv, dim}, keys);
  list.add_layers("self_attn.v_proj", {kv, dim}, cursor.take_layers(h.layers, kv * dim));
  list.add_layers("self_attn.o_proj", {dim, dim}, cursor.take_layers(h.layers, dim * dim));
  list.add_layers("post_attention_layernorm", {dim}, cursor.take_layers(h.layers, dim));
  list.add_layers("mlp.gate_proj", {h.hidden, dim}, cursor.take_layers(h.layers, h.hidden * dim));
  list.add_layers("mlp.down_proj", {dim, h.hidden}, cursor.take_layers(h.layers, h.hidden * dim));
  list.add_layers("mlp.up_proj", {h.hidden, dim}, cursor.take_layers(h.layers, h.hidden * dim));
  list.add("model.norm.weight", {dim}, cursor.take(dim));
  write_file(directory / "config.json", model_config_json(config_of(h)));
  return write_safetensors(directory / "model.safetensors", list.tensors());
}

}  // namespace tessera
