#include "models/text/tokenizer.h"

#include <utility>

#include "models/gguf/model.h"
#include "models/status_macros.h"
#include "models/text/gguf_tokenizer.h"
#include "models/text/json_file.h"
#include "models/text/piece_tokenizer.h"
#include "models/text/sentencepiece_model.h"
#include "models/text/tokenizer_config.h"
#include "models/text/tokenizer_json.h"

namespace tessera {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> load_sentencepiece(const std::filesystem::path& path,
                                                              const TokenizerConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, read_text_file(path));
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
  const std::filesystem::path json = directory / "tokenizer.json";
  if (std::filesystem::exists(json, error)) {
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::json file, read_json_object(json));
    return named(json, make_json_tokenizer(file, config));
  }
  const std::filesystem::path model = directory / "tokenizer.model";
  if (std::filesystem::exists(model, error)) {
    return named(model, load_sentencepiece(model, config));
  }
  return absl::NotFoundError(directory.string() +
                             " has neither tokenizer.json nor tokenizer.model");
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
