#include "models/checkpoint/mistral_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "models/weights/random_checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/models/gguf/gguf_checkpoint.h"
#include "tests/models/model_runner.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json params_of(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  json params = {{"dim", config.hidden},
                 {"n_layers", config.layers},
                 {"head_dim", config.head_dim},
                 {"hidden_dim", config.ffn},
                 {"n_heads", config.heads},
                 {"n_kv_heads", config.kv_heads},
                 {"norm_eps", config.norm_epsilon},
                 {"vocab_size", config.vocab},
                 {"rope_theta", config.rope_theta},
                 {"max_position_embeddings", config.context},
                 {"tied_embeddings", config.tied_head}};
  if (scaling.kind == RopeScaling::Kind::yarn) {
    params["yarn"] = {{"factor", scaling.factor},
                      {"original_max_position_embeddings", scaling.original_context},
                      {"beta", scaling.beta_fast},
                      {"alpha", scaling.beta_slow},
                      {"apply_scale", false}};
    params["llama_4_scaling"] = {{"beta", scaling.query_growth},
                                 {"original_max_position_embeddings", scaling.original_context}};
  }
  if (config.experts > 0) {
    params["moe"] = {{"num_experts", config.experts},
                     {"num_experts_per_tok", config.chosen_experts}};
  }
  return params;
}

std::string mistral_name(const std::string& name) {
  return absl::StrReplaceAll(name, {{"model.embed_tokens", "tok_embeddings"},
                                    {"model.norm", "norm"},
                                    {"lm_head", "output"},
                                    {"model.layers", "layers"},
                                    {"input_layernorm", "attention_norm"},
                                    {"post_attention_layernorm", "ffn_norm"},
                                    {"self_attn.q_proj", "attention.wq"},
                                    {"self_attn.k_proj", "attention.wk"},
                                    {"block_sparse_moe", "feed_forward"},
                                    {"self_attn.v_proj", "attention.wv"},
                                    {"self_attn.o_proj", "attention.wo"},
                                    {"mlp.gate_proj", "feed_forward.w1"},
                                    {"mlp.down_proj", "feed_forward.w2"},
                                    {"mlp.up_proj", "feed_forward.w3"}});
}

// Writes the weights of a Hugging Face directory as Mistral would.
void write_mistral(const std::filesystem::path& from, const ModelConfig& config,
                   const std::filesystem::path& to) {
  const SafetensorsFile file = SafetensorsFile::open(from / "model.safetensors").value();
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : file.tensors()) {
    std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    if (absl::StrContains(name, "q_proj") || absl::StrContains(name, "k_proj")) {
      bytes = paired_rows(bytes, tensor.shape[0], config.head_dim);
    }
    NamedTensor& own =
        tensors.emplace_back(NamedTensor{mistral_name(name), tensor.type, tensor.shape, {}});
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    own.bytes.assign(first, first + bytes.size());
  }
  tensors.push_back(
      {"vision_encoder.ln_pre.weight", TensorType::f32, {1}, std::vector<std::byte>(4)});
  ASSERT_TRUE(write_safetensors(to / kMistralWeights, tensors).ok());
  write_file(to / kMistralParams, params_of(config).dump());
}

TEST(MistralLayout, HasTheLogitsOfTheHuggingFaceDirectory) {
  ModelConfig plain = tiny_llama_config();
  plain.architecture = "Ministral3ForCausalLM";
  ModelConfig growing = plain;
  growing.context = 512;
  growing.tied_head = true;
  growing.rope_scaling.kind = RopeScaling::Kind::yarn;
  growing.rope_scaling.factor = 4;
  growing.rope_scaling.original_context = 32;
  growing.rope_scaling.query_growth = 0.5f;
  ModelConfig experts = plain;
  experts.architecture = "MixtralForCausalLM";
  experts.experts = experts.own_experts = 4;
  experts.chosen_experts = 2;
  experts.normalise_experts = true;
  for (const ModelConfig& config : {plain, growing, experts}) {
    const TemporaryDirectory hugging_face;
    const TemporaryDirectory mistral;
    ASSERT_TRUE(write_random_checkpoint(hugging_face.path(), config, 3).ok());
    write_mistral(hugging_face.path(), config, mistral.path());
    const std::vector<int32_t> tokens = random_tokens(100, config.vocab, 1);
    EXPECT_EQ(ModelRunner(mistral.path(), {}).sequence(tokens, 32),
              ModelRunner(hugging_face.path(), {}).sequence(tokens, 32));
  }
}

TEST(MistralLayout, RefusesWhatItLacksByField) {
  for (const auto& [field, value] :
       {std::pair<const char*, json>{"moe", {{"num_experts", 8}}},
        {"moe", {{"num_experts", 8}, {"num_experts_per_tok", 2}, {"num_shared_experts", 1}}},
        {"quantization", {{"qformat_weight", "fp8_e4m3"}}},
        {"kv_lora_rank", 512},
        {"dim", 0},
        {"head_dim", 20},
        {"n_kv_heads", 3}}) {
    SCOPED_TRACE(field);
    json params = params_of(tiny_llama_config());
    params[field] = value;
    const auto parsed = parse_mistral_params(params.dump());
    ASSERT_FALSE(parsed.ok());
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(field));
  }
}

}  // namespace
}  // namespace tessera
