#include "models/gguf/gguf_rope.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/architectures/rope_config.h"
#include "models/config/config_limits.h"
#include "models/gguf/tensor_names.h"

namespace tessera {
namespace {

using namespace config_limits;

class RopeReader {
 public:
  RopeReader(const GgufModel& model, const Architecture& architecture, JsonFields& fields,
             ModelConfig& config)
      : model_(model),
        architecture_(architecture),
        fields_(fields),
        config_(config),
        scaling_(config.rope_scaling) {}

  absl::Status run() {
    config_.rope_theta = fields_.number_or(key("freq_base").c_str(), 10000, 1, kMaxRopeTheta);
    if (architecture_.config.local_rope) {
      config_.local_rope_theta =
          fields_.number_or(key("freq_base_swa").c_str(), 10000, 1, kMaxRopeTheta);
    }
    TESSERA_RETURN_IF_ERROR(read_width());
    TESSERA_RETURN_IF_ERROR(read_kind());
    TESSERA_RETURN_IF_ERROR(read_scaling());
    return read_query_growth();
  }

 private:
  std::string key(const char* rest) const {
    return absl::StrCat(architecture_.gguf.name, ".rope.", rest);
  }

  absl::Status unsupported(const std::string& what) const {
    return absl::UnimplementedError(
        absl::StrCat(fields_.path(), ": key \"", what, "\" is not supported"));
  }

  // Reads the elements of a head that are rotated.
  absl::Status read_width() {
    const std::string name = key("dimension_count");
    const int32_t rotated = fields_.integer_or(name.c_str(), config_.head_dim, 1, kMaxWidth);
    TESSERA_RETURN_IF_ERROR(fields_.status());
    if (rotated == config_.head_dim) return absl::OkStatus();
    if (!architecture_.config.partial_rotary) return unsupported(name);
    if (rotated % 2 != 0 || rotated > config_.head_dim) {
      fields_.refuse(name.c_str(), absl::StrCat("is ", rotated, ", expected an even number up to ",
                                                config_.head_dim));
    }
    config_.rotary_dim = rotated;
    return fields_.status();
  }

  absl::Status read_kind() {
    const std::string type = fields_.text_or(key("scaling.type").c_str(), "");
    TESSERA_RETURN_IF_ERROR(fields_.status());
    const bool listed = model_.find_tensor(kGgufRopeFactors) != nullptr;
    const bool longrope = model_.find_tensor(kGgufLongFactors) != nullptr;
    factor_key_ = key("scaling.factor");
    const std::string old_factor = key("scale_linear");  // files of 2023
    if (type == "linear") {
      scaling_.kind = RopeScaling::Kind::linear;
    } else if (type == "yarn") {
      scaling_.kind = RopeScaling::Kind::yarn;
    } else if (type == "longrope" || (type.empty() && longrope)) {
      scaling_.kind = RopeScaling::Kind::longrope;
    } else if (type.empty() && fields_.has(old_factor.c_str())) {
      scaling_.kind = RopeScaling::Kind::linear;
      factor_key_ = old_factor;
    } else if (type.empty() || type == "none") {
      scaling_.kind = listed ? RopeScaling::Kind::factors : RopeScaling::Kind::none;
    } else {
      return absl::UnimplementedError(
          absl::StrCat(fields_.path(), ": the RoPE scaling ", in_quotes(type),
                       " is not supported; supported are \"none\", \"linear\", \"yarn\", "
                       "\"longrope\" and the factors of ",
                       kGgufRopeFactors));
    }
    if (listed && scaling_.kind != RopeScaling::Kind::factors) {
      return absl::UnimplementedError(
          absl::StrCat(in_file(kGgufRopeFactors), "is not supported together with other scaling"));
    }
    if (scaling_.kind != RopeScaling::Kind::longrope &&
        fields_.has(key("scaling.attn_factor").c_str())) {
      return unsupported(key("scaling.attn_factor"));
    }
    return absl::OkStatus();
  }

  absl::Status read_scaling() {
    if (scaling_.kind == RopeScaling::Kind::yarn) return read_yarn();
    if (scaling_.kind == RopeScaling::Kind::longrope) return read_longrope();
    if (scaling_.kind == RopeScaling::Kind::linear) {
      scaling_.factor = fields_.number(factor_key_.c_str(), 1, kMaxRopeFactor);
    }
    if (scaling_.kind == RopeScaling::Kind::factors) {
      TESSERA_ASSIGN_OR_RETURN(scaling_.factors, read_factors(kGgufRopeFactors));
    }
    return fields_.status();
  }

  int32_t original_context() {
    return fields_.integer_or(key("scaling.original_context_length").c_str(), config_.context, 1,
                              kMaxContext);
  }

  // Cosines and sines grow as in transformers, whose mscale is 1 in these files.
  absl::Status read_yarn() {
    scaling_.factor = fields_.number(key("scaling.factor").c_str(), 1, kMaxRopeFactor);
    scaling_.original_context = original_context();
    scaling_.beta_fast = fields_.number_or(key("scaling.yarn_beta_fast").c_str(), 32, 1e-3, 1e6);
    scaling_.beta_slow = fields_.number_or(key("scaling.yarn_beta_slow").c_str(), 1, 1e-3, 1e6);
    const float divisor =
        fields_.number_or(key("scaling.yarn_log_multiplier").c_str(), 0, 0, kMaxRopeFactor);
    const float growth =
        yarn_growth(scaling_.factor, 1) / (divisor > 0 ? yarn_growth(scaling_.factor, divisor) : 1);
    scaling_.attention_factor =
        fields_.number_or(key("scaling.yarn_attn_factor").c_str(), growth, 0, kMaxRopeFactor);
    const std::string share = key("scaling.yarn_ext_factor");
    const bool whole = fields_.number_or(share.c_str(), 1, -1e6, 1e6) == 1;
    TESSERA_RETURN_IF_ERROR(fields_.status());
    return whole ? absl::OkStatus() : unsupported(share);
  }

  absl::Status read_longrope() {
    scaling_.original_context = original_context();
    scaling_.attention_factor =
        fields_.number_or(key("scaling.attn_factor").c_str(), 1, 0, kMaxRopeFactor);
    TESSERA_RETURN_IF_ERROR(fields_.status());
    scaling_.factor =
        static_cast<float>(config_.context) / static_cast<float>(scaling_.original_context);
    TESSERA_ASSIGN_OR_RETURN(scaling_.short_factors, read_factors(kGgufShortFactors));
    TESSERA_ASSIGN_OR_RETURN(scaling_.long_factors, read_factors(kGgufLongFactors));
    return absl::OkStatus();
  }

  // Ministral 3: the original context, in which queries do not grow, is also YaRN's.
  absl::Status read_query_growth() {
    if (architecture_.gguf.query_growth) {
      const std::string name =
          absl::StrCat(architecture_.gguf.name, ".attention.temperature_scale");
      scaling_.query_growth = fields_.number_or(name.c_str(), 0, 0, 100);
      scaling_.original_context = original_context();
    }
    return fields_.status();
  }

  std::string in_file(const char* tensor) const {
    return absl::StrCat(fields_.path(), ": tensor \"", tensor, "\": ");
  }

  // Returns: one factor for each pair that is rotated.
  absl::StatusOr<std::vector<float>> read_factors(const char* name) const {
    const StoredTensor* tensor = model_.find_tensor(name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(in_file(name), "is missing"));
    }
    const int64_t pairs = config_.rotary_width() / 2;
    if (tensor->type != TensorType::f32 || tensor->shape != TensorShape{pairs}) {
      return absl::InvalidArgumentError(
          absl::StrCat(in_file(name), "is ", std::string(tessera::name(tensor->type)), " ",
                       shown(tensor->shape), ", expected F32 [", pairs, "]"));
    }
    std::vector<float> factors(static_cast<size_t>(pairs));
    read_f32(*tensor, 0, factors);
    for (const float factor : factors) {
      if (!(factor >= 1e-6f && factor <= static_cast<float>(kMaxRopeFactor))) {
        return absl::InvalidArgumentError(
            absl::StrCat(in_file(name), "holds ", factor, ", expected 1e-6 to ", kMaxRopeFactor));
      }
    }
    return factors;
  }

  const GgufModel& model_;
  const Architecture& architecture_;
  JsonFields& fields_;
  ModelConfig& config_;
  RopeScaling& scaling_;
  std::string factor_key_;  // of linear scaling
};

}  // namespace

absl::Status read_gguf_rope(const GgufModel& model, const Architecture& architecture,
                            JsonFields& fields, ModelConfig& config) {
  return RopeReader(model, architecture, fields, config).run();
}

}  // namespace tessera
