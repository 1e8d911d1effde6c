#include "models/config/shard.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tessera {

absl::Status check_divides(const ModelConfig& config, int32_t ranks) {
  if (config.kv_heads % ranks != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's ", config.kv_heads,
                     " KV heads (num_key_value_heads) cannot be split evenly over ", ranks,
                     " ranks: a KV head cannot be split"));
  }
  if (config.experts > 0) {
    if (config.experts % ranks != 0) {
      return absl::InvalidArgumentError(absl::StrCat("the model's ", config.experts,
                                                     " experts cannot be split evenly over ", ranks,
                                                     " ranks: an expert cannot be split"));
    }
    if (config.shared_ffn % ranks != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the shared expert's width of ", config.shared_ffn,
                       " cannot be split evenly over ", ranks, " ranks"));
    }
    return absl::OkStatus();
  }
  if (config.ffn % ranks != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the model's inner width of ", config.ffn,
                                                   " (intermediate_size) cannot be split evenly "
                                                   "over ",
                                                   ranks, " ranks"));
  }
  return absl::OkStatus();
}

ModelConfig shard_config(const ModelConfig& config, int32_t ranks) {
  TESSERA_CHECK(check_divides(config, ranks).ok(), "a model that these ranks cannot share");
  ModelConfig own = config;
  own.heads /= ranks;
  own.kv_heads /= ranks;
  if (config.experts > 0) {
    own.own_experts /= ranks;
    own.shared_ffn /= ranks;
  } else {
    own.ffn /= ranks;
  }
  return own;
}

ModelConfig whole_config(const ModelConfig& shard, int32_t ranks) {
  ModelConfig whole = shard;
  whole.heads *= ranks;
  whole.kv_heads *= ranks;
  if (shard.experts > 0) {
    whole.own_experts *= ranks;
    whole.shared_ffn *= ranks;
  } else {
    whole.ffn *= ranks;
  }
  return whole;
}

}  // namespace tessera
