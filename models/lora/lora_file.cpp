#include "models/lora/lora_file.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/gguf/gguf_model.h"
#include "files/json_fields.h"
#include "models/architectures/architecture.h"
#include "models/gguf/tensor_names.h"
#include "models/lora/peft_config.h"
#include "models/lora/product.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kTensorFile = "adapter_model.safetensors";
constexpr const char* kPickles = "adapter_model.bin";
constexpr absl::string_view kPeftBeginning = "base_model.model.";
constexpr absl::string_view kTextBeginning = "model.language_model.";
constexpr absl::string_view kWeight = ".weight";

enum class LoraHalf : uint8_t { a, b };

// A matrix of an adapter, by the name of its tensor.
struct NamedHalf {
  std::string module;  // "model.layers.0.self_attn.q_proj", or a GGUF file's "blk.0.attn_q.weight"
  LoraHalf half = LoraHalf::a;
};

// Ends of tensor names that belong to no matrix, and their kinds.
struct RefusedTensor {
  absl::string_view part;
  const char* kind;
};
constexpr RefusedTensor kRefusedTensors[] = {
    {".lora_embedding_A", "a changed embedding"},
    {".lora_embedding_B", "a changed embedding"},
    {".lora_magnitude_vector", "DoRA"},
    {".modules_to_save.", "a whole module"},
    {".lora_B.bias", "a bias of B"},
};

std::optional<NamedHalf> half_of(absl::string_view name, absl::string_view a, absl::string_view b) {
  if (absl::ConsumeSuffix(&name, a)) return NamedHalf{std::string(name), LoraHalf::a};
  if (absl::ConsumeSuffix(&name, b)) return NamedHalf{std::string(name), LoraHalf::b};
  return std::nullopt;
}

absl::Status refused_tensor(const std::filesystem::path& file, const std::string& name) {
  for (const RefusedTensor& refused : kRefusedTensors) {
    if (absl::StrContains(name, refused.part)) {
      return absl::UnimplementedError(absl::StrCat(file.string(), ": tensor ", in_quotes(name),
                                                   ": is ", refused.kind,
                                                   ", which is not supported"));
    }
  }
  return absl::UnimplementedError(
      absl::StrCat(file.string(), ": tensor ", in_quotes(name), ": is no matrix of an adapter"));
}

// PEFT writes the names of transformers' modules. Those of a language model beside an encoder of
// images differ from the checkpoint's.
std::string tensor_of_module(absl::string_view module, const Architecture& architecture) {
  if (architecture.prefix[0] != '\0' && absl::ConsumePrefix(&module, kTextBeginning)) {
    return absl::StrCat(architecture.prefix, "model.", module, kWeight);
  }
  return absl::StrCat(module, kWeight);
}

absl::Status check_gguf_fields(const GgufFile& file, const ModelConfig& config, float& alpha) {
  json object = json::object();
  for (const char* key :
       {"general.type", "general.architecture", "adapter.type", "adapter.lora.alpha"}) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) continue;
    TESSERA_ASSIGN_OR_RETURN(object[key], found->second.to_json());
  }
  JsonFields fields(object, file.path().string());
  const std::string type = fields.text("general.type");
  const std::string adapter = fields.text_or("adapter.type", "");
  const std::string architecture = fields.text_or("general.architecture", "");
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (type != "adapter" || adapter != "lora") {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path().string(), ": is no LoRA adapter: general.type is ", in_quotes(type),
        " and adapter.type ", in_quotes(adapter), ", expected \"adapter\" and \"lora\""));
  }
  const Architecture& own = architecture_of(config);
  if (own.gguf.name == nullptr || architecture != own.gguf.name) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path().string(), ": general.architecture is ", in_quotes(architecture),
                     ", but the model is a ", own.name));
  }
  alpha = fields.number("adapter.lora.alpha", -1e6, 1e6);
  return fields.status();
}

std::string missing_files(const std::filesystem::path& directory) {
  std::error_code ignored;
  return std::filesystem::exists(directory / kPickles, ignored)
             ? absl::StrCat("; ", kPickles,
                            " is PyTorch's pickles, which are not read: save the adapter with "
                            "safe_serialization")
             : "";
}

}  // namespace

absl::StatusOr<LoraFile> LoraFile::open(const std::filesystem::path& path,
                                        const ModelConfig& config) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return absl::NotFoundError(absl::StrCat(path.string(), ": there is no such adapter"));
  }
  std::optional<std::filesystem::path> gguf;
  if (!std::filesystem::exists(path / kConfigFile, ignored)) {
    TESSERA_ASSIGN_OR_RETURN(gguf, find_gguf(path));
  }
  LoraFile file(gguf.value_or(path / kTensorFile));
  TESSERA_RETURN_IF_ERROR(gguf ? file.open_gguf(config) : file.open_peft(path, config));
  TESSERA_RETURN_IF_ERROR(file.check_pairs());
  return file;
}

absl::Status LoraFile::open_peft(const std::filesystem::path& directory,
                                 const ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(const PeftConfig peft, read_peft_config(directory / kConfigFile));
  absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::open(path_);
  if (!opened.ok()) {
    return absl::Status(opened.status().code(),
                        absl::StrCat(opened.status().message(), missing_files(directory)));
  }
  safetensors_ = *std::move(opened);
  const Architecture& architecture = architecture_of(config);
  for (const auto& [name, tensor] : safetensors_->tensors()) {
    const std::optional<NamedHalf> half = half_of(name, ".lora_A.weight", ".lora_B.weight");
    if (!half) return refused_tensor(path_, name);
    const std::string own =
        tensor_of_module(absl::StripPrefix(half->module, kPeftBeginning), architecture);
    LoraPair& pair = pairs_[own];
    (half->half == LoraHalf::a ? pair.a : pair.b) = tensor;
    pair.scale = peft.scale;
    const size_t of_rank = half->half == LoraHalf::a ? 0 : 1;
    if (tensor.shape.size() == 2 && tensor.shape[of_rank] != peft.rank) {
      return absl::InvalidArgumentError(absl::StrCat(path_.string(), ": tensor ", in_quotes(name),
                                                     ": has shape ", shown(tensor.shape),
                                                     ", but r is ", peft.rank));
    }
  }
  return absl::OkStatus();
}

absl::Status LoraFile::open_gguf(const ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(gguf_, GgufFile::open(path_));
  float alpha = 0;
  TESSERA_RETURN_IF_ERROR(check_gguf_fields(*gguf_, config, alpha));
  const Architecture& architecture = architecture_of(config);
  for (const auto& [name, tensor] : gguf_->tensors()) {
    const std::optional<NamedHalf> half = half_of(name, ".lora_a", ".lora_b");
    if (!half) return refused_tensor(path_, name);
    LoraPair& pair = pairs_[checkpoint_name(half->module, architecture)];
    if (half->half == LoraHalf::a) {
      pair.a = tensor;
      // A file whose alpha is 0 has B A itself, as in llama.cpp.
      const int64_t rank = tensor.shape.empty() ? 1 : tensor.shape[0];
      pair.scale = alpha == 0 ? 1 : alpha / static_cast<float>(rank);
    } else {
      pair.b = tensor;
      const bool paired = architecture.gguf.interleaves_heads && is_rotated(half->module);
      pair.b->interleaved_rows = paired ? config.head_dim : 0;
    }
  }
  return absl::OkStatus();
}

absl::Status LoraFile::check_pairs() const {
  if (pairs_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path_.string(), ": has no matrices"));
  }
  for (const auto& [name, pair] : pairs_) {
    if (!pair.a || !pair.b) {
      return absl::InvalidArgumentError(
          absl::StrCat(describe(name), ": has ", pair.a ? "A without B" : "B without A"));
    }
    for (const TensorType type : {pair.a->type, pair.b->type}) {
      if (is_readable(type)) continue;
      return absl::UnimplementedError(absl::StrCat(describe(name), ": has type ",
                                                   std::string(tessera::name(type)),
                                                   "; supported are F32, F16 and BF16"));
    }
    const TensorShape& shape = pair.a->shape;
    if (shape.size() == 2 && (shape[0] < 1 || shape[0] > kMaxLoraRank)) {
      return absl::InvalidArgumentError(absl::StrCat(describe(name), ": has rank ", shape[0],
                                                     ", at most ", kMaxLoraRank, " is supported"));
    }
  }
  return absl::OkStatus();
}

std::string LoraFile::describe(const std::string& tensor_name) const {
  const std::string module(absl::StripSuffix(tensor_name, kWeight));
  return absl::StrCat(path_.string(), ": ", in_quotes(module));
}

}  // namespace tessera
