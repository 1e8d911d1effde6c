#include "text/tokenizer.h"

#include <utility>

#include "base/status_macros.h"
#include "files/gguf/gguf_model.h"
#include "text/gguf_tokenizer.h"
#include "text/json_file.h"
#include "text/piece_tokenizer.h"
#include "text/ranked_tokenizer.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_json.h"

namespace tessera {
namespace {

// Mistral's own names have a version behind them: tokenizer.model.v3. Returns: the one of a
// directory, or an empty path.
// Errors: InvalidArgument for several of them.
absl::StatusOr<std::filesystem::path> find_versioned_model(const std::filesystem::path& directory) {
  std::filesystem::path found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (!entry.path().filename().string().starts_with("tokenizer.model.v")) continue;
    if (!found.empty()) {
      return absl::InvalidArgumentError(
          directory.string() + " has both " + found.filename().string() + " and " +
          entry.path().filename().string() + "; remove the one that is not the model's");
    }
    found = entry.path();
  }
  return found;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> load_model_file(const std::filesystem::path& path,
                                                           const TokenizerConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, read_text_file(path));
  if (is_tiktoken_model(bytes)) return make_tiktoken_tokenizer(bytes, config);
  TESSERA_ASSIGN_OR_RETURN(SentencePieceModel model, SentencePieceModel::parse(bytes));
  return make_sentencepiece_tokenizer(std::move(model), config);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> named(
    const std::filesystem::path& path, absl::StatusOr<std::unique_ptr<Tokenizer>> result) {
  if (result.ok()) return result;
  return absl::Status(result.status().code(),
                      path.string() + ": " + std::string(result.status().message()));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> load_directory(const std::filesystem::path& directory) {
  TESSERA_ASSIGN_OR_RETURN(const TokenizerConfig config, TokenizerConfig::load(directory));
  std::error_code error;
  const std::filesystem::path json_file = directory / "tokenizer.json";
  if (std::filesystem::exists(json_file, error)) {
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::json file, read_json_object(json_file));
    return named(json_file, make_json_tokenizer(file, config));
  }
  const std::filesystem::path model = directory / "tokenizer.model";
  if (std::filesystem::exists(model, error)) {
    return named(model, load_model_file(model, config));
  }
  const std::filesystem::path tekken = directory / "tekken.json";
  if (std::filesystem::exists(tekken, error)) {
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::json file, read_json_object(tekken));
    return named(tekken, make_tekken_tokenizer(file));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::filesystem::path versioned, find_versioned_model(directory));
  if (!versioned.empty()) {
    return named(versioned, load_model_file(versioned, config));
  }
  return absl::NotFoundError(directory.string() +
                             " has neither tokenizer.json nor tokenizer.model nor tekken.json nor "
                             "tokenizer.model.v*");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::filesystem::path& model) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(model));
  if (gguf) {
    TESSERA_ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*gguf));
    return make_gguf_tokenizer(opened);
  }
  return load_directory(model);
}

}  // namespace tessera
