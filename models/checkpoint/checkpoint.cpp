#include "models/checkpoint/checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "files/json_fields.h"
#include "models/architectures/tensor_pattern.h"
#include "models/checkpoint/mistral_layout.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/config_limits.h"
#include "models/gguf/gguf_config.h"
#include "models/gguf/tensor_names.h"

namespace tessera {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

// Returns: a sentence about weights that are there in a form that is not read; empty for none.
std::string found_instead(const std::filesystem::path& directory) {
  struct Form {
    std::string_view part;  // of the file's name
    const char* what;
    const char* advice = "convert it to safetensors";
  };
  constexpr Form kForms[] = {
      {"pytorch_model", "PyTorch's pickles"},
      {".pth", "PyTorch's pickles"},
      {"adapter_model", "an adapter (LoRA)", "serve the model that it changes"},
      {"tf_model", "TensorFlow's weights"},
      {"flax_model", "Flax's weights"},
      {".onnx", "ONNX"},
      {"consolidated", "Mistral's own layout beside a config.json"},
  };
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    for (const Form& form : kForms) {
      if (name.find(form.part) == std::string::npos) continue;
      return absl::StrCat("; ", in_quotes(name), " is ", form.what,
                          ", which is not read: ", form.advice);
    }
  }
  return {};
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::open(const std::filesystem::path& model) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(model));
  Checkpoint checkpoint(gguf.value_or(model));
  if (gguf) {
    TESSERA_RETURN_IF_ERROR(checkpoint.open_gguf());
    return checkpoint;
  }
  if (std::error_code error; !std::filesystem::exists(model / "config.json", error) &&
                             std::filesystem::exists(model / kMistralParams, error)) {
    TESSERA_RETURN_IF_ERROR(checkpoint.open_mistral());
    return checkpoint;
  }
  absl::StatusOr<SafetensorsFile> single = SafetensorsFile::open(model / kSingleFile);
  if (single.ok()) {
    const auto& file = checkpoint.files_.emplace(kSingleFile, *std::move(single)).first->second;
    for (const auto& [tensor_name, tensor] : file.tensors()) {
      checkpoint.add(file, tensor_name);
    }
    TESSERA_RETURN_IF_ERROR(checkpoint.split_stacked());
    TESSERA_RETURN_IF_ERROR(checkpoint.join_quantised());
    return checkpoint;
  }
  if (!absl::IsNotFound(single.status())) {
    return single.status();
  }
  const std::filesystem::path index = model / kIndexFile;
  std::error_code ignored;
  if (!std::filesystem::exists(index, ignored)) {
    return absl::NotFoundError(absl::StrCat(model.string(), ": has neither ", kSingleFile, " nor ",
                                            kIndexFile, " nor a GGUF file", found_instead(model)));
  }
  TESSERA_RETURN_IF_ERROR(checkpoint.open_shards(index));
  TESSERA_RETURN_IF_ERROR(checkpoint.split_stacked());
  TESSERA_RETURN_IF_ERROR(checkpoint.join_quantised());
  return checkpoint;
}

void Checkpoint::add(const SafetensorsFile& file, const std::string& tensor_name) {
  places_.emplace(tensor_name, Place{file.path(), *file.find(tensor_name)});
}

absl::Status Checkpoint::open_mistral() {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(path_));
  TESSERA_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(path_ / kMistralWeights));
  const SafetensorsFile& file = files_.emplace(kMistralWeights, std::move(opened)).first->second;
  for (const auto& [tensor_name, tensor] : file.tensors()) {
    const std::optional<std::string> own = name_of_mistral_tensor(tensor_name);
    if (!own) continue;
    const auto added = places_.emplace(*own, Place{file.path(), tensor});
    if (is_interleaved_mistral_tensor(tensor_name)) {
      added.first->second.tensor.interleaved_rows = config.head_dim;
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::open_gguf() {
  TESSERA_ASSIGN_OR_RETURN(gguf_, GgufModel::open(path_));
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_gguf_config(*gguf_));
  gguf_names_ = &architecture_of(config);
  for (const GgufFile& file : gguf_->files()) {
    for (const auto& [tensor_name, tensor] : file.tensors()) {
      if (belongs_to_config(tensor_name)) continue;
      const std::string own = checkpoint_name(tensor_name, *gguf_names_);
      if (absl::StrContains(own, kExpertIndex)) {
        TESSERA_RETURN_IF_ERROR(add_experts(Place{file.path(), tensor}, own, config.experts));
        continue;
      }
      const auto added = places_.emplace(own, Place{file.path(), tensor});
      TensorShape& shape = added.first->second.tensor.shape;
      if (is_one_row(tensor_name) && shape.size() == 1) shape.insert(shape.begin(), 1);
      if (gguf_names_->gguf.interleaves_heads && is_rotated(tensor_name)) {
        added.first->second.tensor.interleaved_rows = config.head_dim;
      }
    }
  }
  return absl::OkStatus();
}

// Adds a tensor for each expert of one with all experts of a layer, [experts, rows, cols].
absl::Status Checkpoint::add_experts(Place all, const std::string& pattern, int32_t experts) {
  const TensorShape shape = all.tensor.shape;
  if (shape.size() != 3 || shape[0] != experts) {
    return absl::InvalidArgumentError(
        absl::StrCat(all.file.string(), ": tensor ", in_quotes(stored_name(pattern)),
                     ": has shape ", shown(shape), ", expected [", experts, ", rows, cols]"));
  }
  const size_t bytes = all.tensor.bytes.size() / static_cast<size_t>(experts);
  all.tensor.shape = {shape[1], shape[2]};
  const std::span<const std::byte> whole = all.tensor.bytes;
  for (int32_t expert = 0; expert < experts; ++expert) {
    all.tensor.bytes = whole.subspan(static_cast<size_t>(expert) * bytes, bytes);
    places_.emplace(absl::StrReplaceAll(pattern, {{kExpertIndex, absl::StrCat(expert)}}), all);
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::open_shards(const std::filesystem::path& index) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, read_small_file(index));
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json parsed, parse_strict_json(text, index.string()));
  const auto map = parsed.is_object() ? parsed.find("weight_map") : parsed.end();
  if (!parsed.is_object() || map == parsed.end() || !map->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(index.string(), ": weight_map: is missing or no JSON object"));
  }
  for (const auto& [tensor_name, shard] : map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(absl::StrCat(index.string(), ": tensor ",
                                                     in_quotes(tensor_name),
                                                     ": its shard is not a plain file name"));
    }
    const auto& shard_name = shard.get_ref<const std::string&>();
    auto file = files_.find(shard_name);
    if (file == files_.end()) {
      TESSERA_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(path_ / shard_name));
      file = files_.emplace(shard_name, std::move(opened)).first;
    }
    if (file->second.find(tensor_name) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file->second.path().string(),
                                                     ": has no tensor ", in_quotes(tensor_name),
                                                     ", but ", kIndexFile, " lists it there"));
    }
    add(file->second, tensor_name);
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::split_stacked() {
  for (const std::string& holder : names()) {
    const std::vector<HeldTensor> held = held_tensors(holder);
    if (held.empty()) continue;
    Place place = places_.at(holder);
    const TensorShape shape = place.tensor.shape;
    const bool of_experts = absl::StrContains(held.front().name, kExpertIndex);
    const int64_t experts = of_experts && !shape.empty() ? shape.front() : 1;
    if (shape.size() != (of_experts ? 3 : 2) || experts < 1 ||
        experts > config_limits::kMaxExperts || shape[shape.size() - 2] % held.front().parts != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          place.file.string(), ": tensor ", in_quotes(holder), ": has shape ", shown(shape),
          ", expected ", of_experts ? "[experts, rows, cols]" : "[rows, cols]"));
    }
    const std::span<const std::byte> whole = place.tensor.bytes;
    for (const HeldTensor& one : held) {
      place.tensor.shape = {shape[shape.size() - 2] / one.parts, shape.back()};
      const size_t bytes = whole.size() / static_cast<size_t>(experts * one.parts);
      for (int64_t expert = 0; expert < experts; ++expert) {
        place.tensor.bytes =
            whole.subspan(static_cast<size_t>(expert * one.parts + one.part) * bytes, bytes);
        places_.insert_or_assign(
            absl::StrReplaceAll(one.name, {{kExpertIndex, absl::StrCat(expert)}}), place);
      }
    }
    places_.erase(holder);
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::join_quantised() {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<QuantisationConfig> config,
                           read_quantisation(path_));
  if (!config) {
    return absl::OkStatus();
  }
  std::vector<std::pair<std::string, std::string>> modules;  // with the name of its codes
  for (const auto& [tensor_name, place] : places_) {
    std::optional<std::string> module = marked_module(*config, tensor_name, place.tensor.type);
    if (module) modules.emplace_back(*std::move(module), tensor_name);
  }
  for (const auto& [module, codes] : modules) {
    if (absl::Status joined = join_module(module, codes, *config); !joined.ok()) {
      return absl::Status(joined.code(), absl::StrCat(path_.string(), ": module ",
                                                      in_quotes(module), ": ", joined.message()));
    }
  }
  std::erase_if(places_, [](const auto& place) { return is_activation_scale(place.first); });
  return absl::OkStatus();
}

// Replaces the tensors of a module's weight by one.
absl::Status Checkpoint::join_module(const std::string& module, const std::string& codes,
                                     const QuantisationConfig& config) {
  const ModuleTensors::Find find = [this](const std::string& tensor_name) {
    const auto found = places_.find(tensor_name);
    return found == places_.end() ? nullptr : &found->second.tensor;
  };
  TESSERA_ASSIGN_OR_RETURN(QuantisedMatrix matrix,
                           config.method->read_matrix(ModuleTensors(module, find), config));
  TESSERA_RETURN_IF_ERROR(check_shapes(matrix));
  Place place = places_.at(codes);
  for (const std::string_view suffix : quantisation_suffixes()) {
    places_.erase(absl::StrCat(module, ".", std::string(suffix)));
  }
  const std::string weight = absl::StrCat(module, ".weight");
  const auto& owned = matrices_[weight] = std::make_unique<QuantisedMatrix>(std::move(matrix));
  place.tensor.shape = {owned->rows, owned->cols};
  place.tensor.matrix = owned.get();
  places_.insert_or_assign(weight, std::move(place));
  return absl::OkStatus();
}

absl::StatusOr<const StoredTensor*> Checkpoint::tensor(const std::string& tensor_name,
                                                       std::span<const int64_t> shape) const {
  const auto found = places_.find(tensor_name);
  if (found == places_.end()) {
    return absl::NotFoundError(absl::StrCat(path_.string(), ": misses tensor ",
                                            stored_name(tensor_name), ", expected with shape ",
                                            shown(shape)));
  }
  const StoredTensor* tensor = &found->second.tensor;
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    return absl::InvalidArgumentError(absl::StrCat(
        describe(tensor_name), ": has shape ", shown(tensor->shape), ", expected ", shown(shape)));
  }
  if (tensor->matrix == nullptr && !is_readable(tensor->type)) {
    return absl::UnimplementedError(absl::StrCat(describe(tensor_name), ": has type ",
                                                 std::string(name(tensor->type)),
                                                 "; supported are F32, F16 and BF16"));
  }
  return tensor;
}

std::string Checkpoint::stored_name(const std::string& tensor_name) const {
  return gguf_names_ == nullptr ? name_of_holder(tensor_name)
                                : gguf_name(tensor_name, *gguf_names_);
}

void Checkpoint::drop_rows(const std::string& tensor_name, int64_t first, int64_t rows) const {
  const auto found = places_.find(tensor_name);
  TESSERA_CHECK(found != places_.end(), "drops pages of a tensor that is not there");
  const StoredTensor& tensor = found->second.tensor;
  if (tensor.matrix == nullptr || !tensor.matrix->codes.transposed) {
    drop(bytes_of_rows(tensor, first, rows), &MappedFile::drop_passed_pages);
  }
}

void Checkpoint::drop_tensor(const std::string& tensor_name) const {
  const auto found = places_.find(tensor_name);
  TESSERA_CHECK(found != places_.end(), "drops pages of a tensor that is not there");
  const StoredTensor& tensor = found->second.tensor;
  drop(tensor.bytes, &MappedFile::drop_pages);
  if (tensor.matrix != nullptr) {
    drop(tensor.matrix->scales.tensor.bytes, &MappedFile::drop_pages);
    drop(tensor.matrix->zeros.tensor.bytes, &MappedFile::drop_pages);
  }
}

void Checkpoint::drop(std::span<const std::byte> part, Drop how) const {
  const auto drop_of = [&](const MappedFile& file) {
    const std::span<const std::byte> all = file.bytes();
    if (part.data() >= all.data() && part.data() < all.data() + all.size()) (file.*how)(part);
  };
  for (const auto& [file_name, file] : files_) drop_of(file.mapped());
  if (gguf_) {
    for (const GgufFile& file : gguf_->files()) drop_of(file.mapped());
  }
}

std::string Checkpoint::describe(const std::string& tensor_name) const {
  const auto found = places_.find(tensor_name);
  TESSERA_CHECK(found != places_.end(), "describes a tensor that is not there");
  return absl::StrCat(found->second.file.string(), ": tensor ",
                      in_quotes(stored_name(tensor_name)));
}

bool Checkpoint::is_zero_bias(const std::string& tensor_name) const {
  const std::string module = tensor_name.substr(0, tensor_name.rfind('.'));
  return absl::EndsWith(tensor_name, ".bias") &&
         matrices_.contains(absl::StrCat(module, ".weight")) &&
         std::ranges::all_of(places_.at(tensor_name).tensor.bytes,
                             [](std::byte byte) { return byte == std::byte{0}; });
}

std::set<std::string> Checkpoint::quantised_types() const {
  std::set<std::string> types;
  for (const auto& [tensor_name, place] : places_) {
    if (is_quantized(place.tensor)) types.emplace(kept_type(place.tensor));
  }
  return types;
}

std::set<TensorType> Checkpoint::matrix_types() const {
  std::set<TensorType> types;
  for (const auto& [tensor_name, place] : places_) {
    if (place.tensor.shape.size() == 2) types.insert(place.tensor.type);
  }
  return types;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [tensor_name, place] : places_) {
    names.push_back(tensor_name);
  }
  return names;
}

}  // namespace tessera
