#include "models/tensor_table.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tessera {
namespace {

int64_t one_per_token(const ModelConfig& c) {
  return c.vocab;
}
int64_t hidden(const ModelConfig& c) {
  return c.hidden;
}
int64_t query_width(const ModelConfig& c) {
  return c.query_width();
}
int64_t kv_width(const ModelConfig& c) {
  return c.kv_width();
}
int64_t ffn(const ModelConfig& c) {
  return c.ffn;
}
bool biased(const ModelConfig& c) {
  return c.qkv_bias;
}
bool tied(const ModelConfig& c) {
  return c.tied_head;
}
bool untied(const ModelConfig& c) {
  return !c.tied_head;
}

using enum WeightSlot;
using enum ShardAxis;

// clang-format off
constexpr TensorRule kTable[] = {
    {"model.embed_tokens.weight",                         embedding,      one_per_token, hidden,      none, nullptr},
    {"model.layers.{}.input_layernorm.weight",            attention_norm, hidden,        nullptr,     none, nullptr},
    {"model.layers.{}.self_attn.q_proj.weight",           qkv,            query_width,   hidden,      rows, nullptr},
    {"model.layers.{}.self_attn.k_proj.weight",           qkv,            kv_width,      hidden,      rows, nullptr},
    {"model.layers.{}.self_attn.v_proj.weight",           qkv,            kv_width,      hidden,      rows, nullptr},
    {"model.layers.{}.self_attn.q_proj.bias",             qkv_bias,       query_width,   nullptr,     rows, biased},
    {"model.layers.{}.self_attn.k_proj.bias",             qkv_bias,       kv_width,      nullptr,     rows, biased},
    {"model.layers.{}.self_attn.v_proj.bias",             qkv_bias,       kv_width,      nullptr,     rows, biased},
    {"model.layers.{}.self_attn.o_proj.weight",           attention_out,  hidden,        query_width, cols, nullptr},
    {"model.layers.{}.post_attention_layernorm.weight",   ffn_norm,       hidden,        nullptr,     none, nullptr},
    {"model.layers.{}.mlp.gate_proj.weight",              gate_up,        ffn,           hidden,      rows, nullptr},
    {"model.layers.{}.mlp.up_proj.weight",                gate_up,        ffn,           hidden,      rows, nullptr},
    {"model.layers.{}.mlp.down_proj.weight",              down,           hidden,        ffn,         cols, nullptr},
    {"model.norm.weight",                                 final_norm,     hidden,        nullptr,     none, nullptr},
    {"lm_head.weight",                                    head,           one_per_token, hidden,      none, untied},
    {"model.embed_tokens.weight",                         head,           one_per_token, hidden,      none, tied},
};
// clang-format on

bool is_per_layer(const TensorRule& rule) {
  return absl::StrContains(rule.pattern, "{}");
}

// `config` is the whole model's, `own` is that of the rank (shard_config()).
ExpectedTensor expect(const TensorRule& rule, const ModelConfig& config, int32_t layer,
                      const ModelConfig& own, Shard shard) {
  ExpectedTensor tensor;
  tensor.name = absl::StrReplaceAll(rule.pattern, {{"{}", absl::StrCat(layer)}});
  tensor.shape.push_back(rule.rows(config));
  if (rule.cols != nullptr) {
    tensor.shape.push_back(rule.cols(config));
  }
  tensor.slot = rule.slot;
  tensor.layer = layer;
  tensor.rows = rule.split == rows ? rule.rows(own) : rule.rows(config);
  if (rule.cols != nullptr) {
    tensor.cols = rule.split == cols ? rule.cols(own) : rule.cols(config);
  }
  tensor.stored_row = rule.split == rows ? shard.rank * tensor.rows : 0;
  tensor.stored_col = rule.split == cols ? shard.rank * tensor.cols : 0;
  return tensor;
}

// Appends a tensor; its rows follow those of earlier tensors of its slot.
void append(ExpectedTensor tensor, std::vector<ExpectedTensor>& all) {
  if (!all.empty() && all.back().slot == tensor.slot && all.back().layer == tensor.layer) {
    tensor.first_row = all.back().first_row + all.back().rows;
  }
  all.push_back(std::move(tensor));
}

}  // namespace

WeightKind kind(WeightSlot slot) {
  switch (slot) {
    case embedding:
      return WeightKind::table;
    case attention_norm:
    case qkv_bias:
    case ffn_norm:
    case final_norm:
      return WeightKind::vector;
    case qkv:
    case attention_out:
    case gate_up:
    case down:
    case head:
      return WeightKind::matrix;
  }
  return WeightKind::matrix;
}

std::span<const TensorRule> tensor_table() {
  return kTable;
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, Shard shard) {
  std::vector<const TensorRule*> present;
  for (const TensorRule& rule : kTable) {
    if (rule.present == nullptr || rule.present(config)) {
      present.push_back(&rule);
    }
  }
  const ModelConfig own = shard_config(config, shard.ranks);
  std::vector<ExpectedTensor> all;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    for (const TensorRule* rule : present) {
      if (is_per_layer(*rule)) {
        append(expect(*rule, config, layer, own, shard), all);
      }
    }
  }
  for (const TensorRule* rule : present) {
    if (!is_per_layer(*rule)) {
      append(expect(*rule, config, kNoLayer, own, shard), all);
    }
  }
  return all;
}

std::vector<WeightShape> weight_shapes(const ModelConfig& config) {
  std::vector<WeightShape> shapes;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    if (tensor.first_row == 0) {
      shapes.push_back({tensor.slot, tensor.layer, 0, tensor.cols});
    }
    shapes.back().rows += tensor.rows;
  }
  return shapes;
}

bool may_be_ignored(const std::string& tensor_name, const ModelConfig& config) {
  return absl::EndsWith(tensor_name, ".rotary_emb.inv_freq") ||
         (config.tied_head && tensor_name == "lm_head.weight");
}

}  // namespace tessera
