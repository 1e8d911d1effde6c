#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/architectures/rope_config.h"
#include "models/checkpoint/config_json.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/model_config.h"
#include "models/weights/random_checkpoint.h"
#include "models/weights/tensor_table.h"
#include "nlohmann/json.hpp"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 32000},
          {"hidden_size", 4096},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"intermediate_size", 11008},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"torch_dtype", "bfloat16"},
          {"rope_scaling", nullptr},
          {"tie_word_embeddings", false}};
}

json of_architecture(const char* name) {
  json config = llama();
  config["architectures"] = {name};
  return config;
}

absl::StatusOr<ModelConfig> parse(const json& config, const std::string& generation = "") {
  return parse_model_config(config.dump(), generation);
}

bool has_slot(const ModelConfig& config, WeightSlot slot) {
  const std::vector<WeightShape> shapes = weight_shapes(config);
  return std::any_of(shapes.begin(), shapes.end(),
                     [&](const WeightShape& shape) { return shape.slot == slot; });
}

json llama3_scaling(const char* key) {
  return {{key, "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

TEST(ModelConfig, ReadsLlama2) {
  const ModelConfig config = parse(llama()).value();
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.vocab, 32000);
  EXPECT_EQ(config.hidden, 4096);
  EXPECT_EQ(config.layers, 32);
  EXPECT_EQ(config.heads, 32);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.ffn, 11008);
  EXPECT_EQ(config.context, 4096);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_FLOAT_EQ(config.norm_epsilon, 1e-5f);
  EXPECT_FLOAT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_FALSE(config.tied_head);
  EXPECT_FALSE(has_slot(config, WeightSlot::qkv_bias));
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
}

TEST(ModelConfig, TakesAsManyKvHeadsAsHeadsWhereLlamaLeavesThemOut) {
  json config = llama();
  config.erase("num_key_value_heads");
  EXPECT_EQ(parse(config)->kv_heads, 32);
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(config)->kv_heads, 32);
}

TEST(ModelConfig, TakesAnExplicitHeadDim) {
  json config = llama();
  config["head_dim"] = 64;
  EXPECT_EQ(parse(config)->head_dim, 64);
  EXPECT_EQ(parse(config)->query_width(), 2048);
  config["head_dim"] = nullptr;
  EXPECT_EQ(parse(config)->head_dim, 128);
}

TEST(ModelConfig, ReadsLlama31sScalingInEverySpelling) {
  std::vector<json> spellings(4, llama());
  spellings[0]["rope_scaling"] = llama3_scaling("rope_type");
  spellings[1]["rope_scaling"] = llama3_scaling("type");
  spellings[2]["rope_parameters"] = llama3_scaling("rope_type");
  spellings[3]["rope_parameters"] = llama3_scaling("rope_type");
  for (size_t i = 0; i < 3; ++i) {
    spellings[i]["rope_theta"] = 500000.0;
  }
  spellings[3]["rope_parameters"]["rope_theta"] = 500000;
  for (const json& spelling : spellings) {
    SCOPED_TRACE(spelling.dump());
    const ModelConfig config = parse(spelling).value();
    EXPECT_FLOAT_EQ(config.rope_theta, 500000);
    EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::llama3);
    EXPECT_FLOAT_EQ(config.rope_scaling.factor, 8);
    EXPECT_FLOAT_EQ(config.rope_scaling.low_freq_factor, 1);
    EXPECT_FLOAT_EQ(config.rope_scaling.high_freq_factor, 4);
    EXPECT_EQ(config.rope_scaling.original_context, 8192);
  }
}

TEST(ModelConfig, ReadsLinearScalingAndTheDefaultOne) {
  json config = llama();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  EXPECT_EQ(parse(config)->rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_FLOAT_EQ(parse(config)->rope_scaling.factor, 4);
  config["rope_scaling"] = nullptr;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse(config)->rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_FLOAT_EQ(parse(config)->rope_theta, 1e6f);
}

// As model cards of Qwen ask for: the context before YaRN stays in max_position_embeddings.
TEST(ModelConfig, IsStretchedByYarnAndByLinearScaling) {
  json config = llama();
  const auto longest = [&] { return longest_context(parse(config).value()); };
  config["max_position_embeddings"] = 32768;
  EXPECT_EQ(longest(), 32768);
  config["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(longest(), 131072);
  config["max_position_embeddings"] = 131072;
  EXPECT_EQ(longest(), 131072) << "stretched already";
  config["max_position_embeddings"] = 40960;
  EXPECT_EQ(longest(), 131072) << "Qwen3";
  config["rope_scaling"]["factor"] = 1.0;
  EXPECT_EQ(longest(), 40960);
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.5}};
  EXPECT_EQ(longest(), 102400) << "without the original context";
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  EXPECT_EQ(longest(), 163840);
  config["architectures"] = {"Gemma3ForCausalLM"};
  EXPECT_EQ(longest(), 40960) << "Gemma 3 counts its scaling in the field";
  config["architectures"] = {"LlamaForCausalLM"};
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 4}};
  EXPECT_EQ(longest(), 40960);
  config["rope_scaling"] = llama3_scaling("rope_type");
  EXPECT_EQ(longest(), 40960);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 1e6}};
  EXPECT_EQ(longest(), 1 << 26) << "the limit of all contexts";
}

TEST(ModelConfig, ReadsMistralsSlidingWindowAndItsAbsence) {
  json config = of_architecture("MistralForCausalLM");
  config["sliding_window"] = 2048;
  EXPECT_EQ(parse(config)->sliding_window, 2048);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(parse(config)->sliding_window, 0);
  config.erase("sliding_window");  // the default of transformers is 4096
  EXPECT_EQ(parse(config)->sliding_window, 4096);
  config.erase("num_key_value_heads");  // the default is 8
  EXPECT_EQ(parse(config)->kv_heads, 8);
}

TEST(ModelConfig, ReadsQwen2) {
  json config = of_architecture("Qwen2ForCausalLM");
  config["use_sliding_window"] = false;
  config["sliding_window"] = 131072;
  config["max_window_layers"] = 28;
  config["tie_word_embeddings"] = true;
  const ModelConfig parsed = parse(config).value();
  EXPECT_TRUE(has_slot(parsed, WeightSlot::qkv_bias));
  EXPECT_TRUE(parsed.tied_head);
  EXPECT_EQ(parsed.sliding_window, 0);
}

// The config.json of a small model of the family, less the fields that transformers alone reads.
TEST(ModelConfig, ReadsQwen3) {
  json config = of_architecture("Qwen3ForCausalLM");
  config.merge_patch(json::parse(R"({
      "attention_bias": false, "head_dim": 128, "hidden_size": 1024, "intermediate_size": 3072,
      "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
      "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
      "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
      "use_sliding_window": false, "vocab_size": 151936})"));
  const ModelConfig parsed = parse(config).value();
  EXPECT_EQ(parsed.head_dim, 128);
  EXPECT_EQ(parsed.query_width(), 2048);
  EXPECT_EQ(parsed.kv_width(), 1024);
  EXPECT_EQ(parsed.sliding_window, 0);
  EXPECT_FLOAT_EQ(parsed.rope_theta, 1e6f);
  EXPECT_FLOAT_EQ(parsed.norm_epsilon, 1e-6f);
  EXPECT_TRUE(parsed.tied_head);
  EXPECT_TRUE(has_slot(parsed, WeightSlot::query_norm));
  EXPECT_TRUE(has_slot(parsed, WeightSlot::key_norm));
  EXPECT_FALSE(has_slot(parsed, WeightSlot::qkv_bias));
  EXPECT_EQ(parsed.experts, 0);
}

TEST(ModelConfig, TakesQwen3sDefaultsWhereFieldsAreMissing) {
  json config = of_architecture("Qwen3ForCausalLM");
  config["hidden_size"] = 1000;  // no multiple of the heads, and head_dim does not need it to be
  config.erase("num_key_value_heads");
  config["sliding_window"] = 4096;
  const ModelConfig parsed = parse(config).value();
  EXPECT_EQ(parsed.head_dim, 128);
  EXPECT_EQ(parsed.kv_heads, 32);
  EXPECT_EQ(parsed.sliding_window, 0);
}

TEST(ModelConfig, TakesEndIdsFromTheGenerationConfigFirst) {
  json config = llama();
  EXPECT_THAT(parse(config, R"({"eos_token_id": [7, 8]})")->eos_ids, ElementsAre(7, 8));
  EXPECT_THAT(parse(config, R"({"eos_token_id": null})")->eos_ids, ElementsAre(2));
  EXPECT_THAT(parse(config, "{}")->eos_ids, ElementsAre(2));
  EXPECT_EQ(parse(config, R"({"bos_token_id": 5})")->bos_id, 5);
  config["eos_token_id"] = {3, 4};
  EXPECT_THAT(parse(config)->eos_ids, ElementsAre(3, 4));
  config["eos_token_id"] = nullptr;
  config["bos_token_id"] = nullptr;
  EXPECT_THAT(parse(config)->eos_ids, IsEmpty());
  EXPECT_EQ(parse(config)->bos_id, -1);
}

TEST(ModelConfig, SurvivesWritingAndReading) {
  for (const TinyModel& model : all_tiny_models()) {
    SCOPED_TRACE(model.name);
    const auto parsed = parse_model_config(model_config_json(model.config), "");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(model_config_json(*parsed), model_config_json(model.config));
    EXPECT_EQ(parsed->sliding_window, model.config.sliding_window);
    EXPECT_EQ(parsed->architecture, model.config.architecture);
    EXPECT_EQ(parsed->rope_scaling.kind, model.config.rope_scaling.kind);
  }
}

TEST(ModelConfig, ReadsADirectoryWithAndWithoutAGenerationConfig) {
  const TemporaryDirectory directory;
  EXPECT_EQ(read_model_config(directory.path()).status().code(), absl::StatusCode::kNotFound);
  write_file(directory / "config.json", llama().dump());
  EXPECT_THAT(read_model_config(directory.path())->eos_ids, ElementsAre(2));
  write_file(directory / "generation_config.json", R"({"eos_token_id": 9})");
  EXPECT_THAT(read_model_config(directory.path())->eos_ids, ElementsAre(9));
  write_file(directory / "generation_config.json", "{");
  EXPECT_THAT(std::string(read_model_config(directory.path()).status().message()),
              AllOf(HasSubstr(directory.path().string()), HasSubstr("generation_config.json")));
}

TEST(ModelConfig, UnitesTheEndOfTheTokenizerWithThoseOfGeneration) {
  const TemporaryDirectory directory;
  const auto ends = [&] { return read_model_config(directory.path()).value().eos_ids; };
  const auto tokenizer = [&](const char* text) {
    write_file(directory / "tokenizer_config.json", text);
  };
  write_file(directory / "config.json", llama().dump());
  write_file(directory / "generation_config.json", R"({"eos_token_id": [9, 8]})");
  tokenizer(R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {
      "7": {"content": "<|im_end|>", "special": true}, "5": {"content": "x"}}})");
  EXPECT_THAT(ends(), ElementsAre(9, 8, 7));
  tokenizer(R"({"eos_token": {"content": "x"}, "added_tokens_decoder": {"8": {"content": "x"}}})");
  EXPECT_THAT(ends(), ElementsAre(9, 8));
  write_file(directory / "added_tokens.json", R"({"<end>": 6, "<far>": 1000000, "<odd>": "1"})");
  tokenizer(R"({"eos_token": "<end>"})");
  EXPECT_THAT(ends(), ElementsAre(9, 8, 6));
  for (const char* const none :
       {R"({"eos_token": "<far>"})", R"({"eos_token": "<odd>"})", R"({"eos_token": null})", "{}",
        R"({"eos_token": "unknown", "added_tokens_decoder": [1]})"}) {
    tokenizer(none);
    EXPECT_THAT(ends(), ElementsAre(9, 8)) << none;
  }
  tokenizer("[");
  EXPECT_THAT(std::string(read_model_config(directory.path()).status().message()),
              HasSubstr("tokenizer_config.json"));
}

// Each config must be refused with a message that names the field.
struct Refusal {
  const char* name;
  const char* patch;  // a JSON merge patch on llama(): null removes a field
  const char* field;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.patch;
}

constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

class RefusedConfig : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedConfig, NamesTheField) {
  json config = llama();
  config.merge_patch(json::parse(GetParam().patch));
  const auto parsed = parse(config);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), GetParam().code) << parsed.status();
  EXPECT_THAT(std::string(parsed.status().message()),
              AllOf(HasSubstr("config.json"), HasSubstr(GetParam().field)));
}

const Refusal kRefusals[] = {
    {"no_architecture", R"({"architectures": null})", "architectures"},
    {"empty_architectures", R"({"architectures": []})", "architectures"},
    {"text_architectures", R"({"architectures": "LlamaForCausalLM"})", "architectures"},
    {"number_architecture", R"({"architectures": [1]})", "architectures"},
    {"unknown_architecture", R"({"architectures": ["GPT2LMHeadModel"]})", "GPT2LMHeadModel",
     kUnimplemented},
    {"no_vocab", R"({"vocab_size": null})", "vocab_size"},
    {"zero_vocab", R"({"vocab_size": 0})", "vocab_size"},
    {"huge_vocab", R"({"vocab_size": 4294967296})", "vocab_size"},
    {"text_vocab", R"({"vocab_size": "32000"})", "vocab_size"},
    {"float_vocab", R"({"vocab_size": 32000.0})", "vocab_size"},
    {"negative_hidden", R"({"hidden_size": -4096})", "hidden_size"},
    {"list_hidden", R"({"hidden_size": [4096]})", "hidden_size"},
    {"huge_hidden", R"({"hidden_size": 18446744073709551615})", "hidden_size"},
    {"hidden_not_dividing", R"({"hidden_size": 4097})", "hidden_size"},
    {"zero_layers", R"({"num_hidden_layers": 0})", "num_hidden_layers"},
    {"many_layers", R"({"num_hidden_layers": 1000000})", "num_hidden_layers"},
    {"float_layers", R"({"num_hidden_layers": 1.5})", "num_hidden_layers"},
    {"bool_heads", R"({"num_attention_heads": true})", "num_attention_heads"},
    {"zero_heads", R"({"num_attention_heads": 0})", "num_attention_heads"},
    {"kv_heads_not_dividing", R"({"num_key_value_heads": 5})", "num_key_value_heads"},
    {"more_kv_heads", R"({"num_key_value_heads": 64})", "num_key_value_heads"},
    {"zero_kv_heads", R"({"num_key_value_heads": 0})", "num_key_value_heads"},
    {"zero_head_dim", R"({"head_dim": 0})", "head_dim"},
    {"odd_head_dim", R"({"head_dim": 127})", "head_dim", kUnimplemented},
    {"wide_head_dim", R"({"head_dim": 512})", "head_dim", kUnimplemented},
    {"derived_head_dim", R"({"hidden_size": 640})", "head_dim 20", kUnimplemented},
    {"zero_ffn", R"({"intermediate_size": 0})", "intermediate_size"},
    {"no_ffn", R"({"intermediate_size": null})", "intermediate_size"},
    {"zero_context", R"({"max_position_embeddings": 0})", "max_position_embeddings"},
    {"huge_context", R"({"max_position_embeddings": 1e30})", "max_position_embeddings"},
    {"zero_epsilon", R"({"rms_norm_eps": 0})", "rms_norm_eps"},
    {"negative_epsilon", R"({"rms_norm_eps": -1e-5})", "rms_norm_eps"},
    {"text_epsilon", R"({"rms_norm_eps": "1e-5"})", "rms_norm_eps"},
    {"text_tied", R"({"tie_word_embeddings": "no"})", "tie_word_embeddings"},
    {"zero_theta", R"({"rope_theta": 0})", "rope_theta"},
    {"negative_theta", R"({"rope_theta": -10000})", "rope_theta"},
    {"huge_theta", R"({"rope_theta": 1e300})", "rope_theta"},
    {"relu", R"({"hidden_act": "relu"})", "hidden_act", kUnimplemented},
    {"number_activation", R"({"hidden_act": 3})", "hidden_act"},
    {"mistral_bias", R"({"architectures": ["MistralForCausalLM"], "attention_bias": true})",
     "attention_bias", kUnimplemented},
    {"qwen3_ffn_bias", R"({"architectures": ["Qwen3ForCausalLM"], "mlp_bias": true})", "mlp_bias",
     kUnimplemented},
    {"text_attention_bias", R"({"attention_bias": 1})", "attention_bias"},
    {"quantised", R"({"quantization_config": {"quant_method": "aqlm"}})",
     "quantization_config: quant_method \"aqlm\"", kUnimplemented},
    {"quantised_without_method", R"({"quantization_config": {"bits": 4}})", "quant_method"},
    {"sliding_layers",
     R"({"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]})",
     "layer_types", kUnimplemented},
    {"chunked_layers", R"({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]})",
     "chunked_attention", kUnimplemented},
    {"layer_types_of_another_length",
     R"({"architectures": ["MinistralForCausalLM"], "layer_types": ["full_attention"]})",
     "layer_types"},
    {"rope_of_each_layer_type",
     R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})", "layer_types",
     kUnimplemented},
    {"mrope", R"({"rope_scaling": {"rope_type": "mrope"}})", "mrope", kUnimplemented},
    {"yarn_without_factor", R"({"rope_scaling": {"rope_type": "yarn"}})", "factor"},
    {"longrope_of_another_length",
     R"({"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}})",
     "short_factor"},
    {"growth_without_original",
     R"({"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}})",
     "original_max_position_embeddings"},
    {"partial_rope", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", kUnimplemented},
    {"odd_partial_rope",
     R"({"architectures": ["Phi3ForCausalLM"], "head_dim": 16, "partial_rotary_factor": 0.2})",
     "partial_rotary_factor"},
    {"text_scaling", R"({"rope_scaling": "linear"})", "rope_scaling"},
    {"number_rope_type", R"({"rope_scaling": {"rope_type": 3}})", "rope_type"},
    {"linear_without_factor", R"({"rope_scaling": {"type": "linear"}})", "factor"},
    {"linear_below_one", R"({"rope_scaling": {"type": "linear", "factor": 0.5}})", "factor"},
    {"linear_zero", R"({"rope_scaling": {"type": "linear", "factor": 0}})", "factor"},
    {"llama3_without_low",
     R"({"rope_scaling": {"type": "llama3", "factor": 8, "high_freq_factor": 4,
         "original_max_position_embeddings": 8192}})",
     "low_freq_factor"},
    {"llama3_equal_factors",
     R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
         "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
     "high_freq_factor"},
    {"llama3_zero_original",
     R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1,
         "high_freq_factor": 4, "original_max_position_embeddings": 0}})",
     "original_max_position_embeddings"},
    {"eos_outside", R"({"eos_token_id": 32000})", "eos_token_id"},
    {"eos_negative", R"({"eos_token_id": [2, -1]})", "eos_token_id"},
    {"eos_text", R"({"eos_token_id": "</s>"})", "eos_token_id"},
    {"eos_nested", R"({"eos_token_id": [[2]]})", "eos_token_id"},
    {"bos_outside", R"({"bos_token_id": 32000})", "bos_token_id"},
    {"bos_float", R"({"bos_token_id": 1.0})", "bos_token_id"},
    {"mistral_zero_window", R"({"architectures": ["MistralForCausalLM"], "sliding_window": 0})",
     "sliding_window"},
    {"mistral_text_window",
     R"({"architectures": ["MistralForCausalLM"], "sliding_window": "4096"})", "sliding_window"},
    {"qwen3_moe_window",
     R"({"architectures": ["Qwen3MoeForCausalLM"], "use_sliding_window": true})",
     "use_sliding_window", kUnimplemented},
    {"qwen3_moe_without_experts", R"({"architectures": ["Qwen3MoeForCausalLM"]})", "num_experts"},
    {"qwen3_moe_dense_layers",
     R"({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 8, "mlp_only_layers": [0]})",
     "mlp_only_layers"},
    {"qwen2_moe_without_biases",
     R"({"architectures": ["Qwen2MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 8, "qkv_bias": false})",
     "qkv_bias"},
    {"qwen2_moe_without_shared_expert",
     R"({"architectures": ["Qwen2MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 8, "shared_expert_intermediate_size": 0})",
     "shared_expert_intermediate_size"},
    {"granite_moe_without_experts", R"({"architectures": ["GraniteMoeForCausalLM"]})",
     "num_local_experts"},
    {"mixtral_chooses_too_many",
     R"({"architectures": ["MixtralForCausalLM"], "num_local_experts": 2,
         "num_experts_per_tok": 3})",
     "num_experts_per_tok"},
    {"smollm3_list", R"({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]})",
     "no_rope_layers"},
    {"granite_zero", R"({"architectures": ["GraniteForCausalLM"], "residual_multiplier": 0})",
     "residual_multiplier"},
    {"mistral3_without_text", R"({"architectures": ["Mistral3ForConditionalGeneration"]})",
     "text_config"},
    {"mistral_small_4",
     R"({"architectures": ["Mistral3ForConditionalGeneration"],
         "text_config": {"model_type": "mistral4"}})",
     "multi-head latent attention", kUnimplemented},
    {"llama4", R"({"architectures": ["Llama4ForConditionalGeneration"]})", "attention in chunks",
     kUnimplemented},
    {"deepseek", R"({"architectures": ["DeepseekV3ForCausalLM"]})", "multi-head latent attention",
     kUnimplemented},
    {"gemma", R"({"architectures": ["Gemma2ForCausalLM"]})", "capped logits", kUnimplemented},
};

INSTANTIATE_TEST_SUITE_P(All, RefusedConfig, testing::ValuesIn(kRefusals),
                         [](const auto& refusal) { return std::string(refusal.param.name); });

TEST(ModelConfig, RefusesWhatIsNotAnObjectOfJson) {
  const std::string deep(100'000, '[');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"),
        std::string("{\"vocab_size\": 1e999}"), std::string("{\"a\": \"\xff\"}"), deep}) {
    SCOPED_TRACE(text.substr(0, 20));
    const auto parsed = parse_model_config(text, "");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("config.json"));
  }
}

TEST(ModelConfig, RefusesAKeyThatStandsTwice) {
  std::string text = llama().dump();
  text.insert(1, R"("vocab_size": 7, )");
  EXPECT_THAT(std::string(parse_model_config(text, "").status().message()),
              AllOf(HasSubstr("vocab_size"), HasSubstr("twice")));
}

}  // namespace
}  // namespace tessera
