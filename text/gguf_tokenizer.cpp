#include "text/gguf_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "files/json_fields.h"
#include "text/bpe_lists.h"
#include "text/gguf_patterns.h"
#include "text/piece_tokenizer.h"
#include "text/sentencepiece_encoder.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_json.h"

namespace tessera {
namespace {

using nlohmann::json;

// A token list of a GGUF file; all three have the same length.
struct TokenLists {
  std::vector<std::string_view> tokens;  // views of the file
  json types;                            // kGgufNormalToken and others; empty: all are normal
  json scores;                           // numbers, or empty
};

class GgufTokenizerBuilder {
 public:
  explicit GgufTokenizerBuilder(const GgufModel& model)
      : model_(model), fields_(model.fields(), model.path().string()) {}

  absl::StatusOr<std::unique_ptr<Tokenizer>> run() {
    const std::string kind = fields_.text("tokenizer.ggml.model");
    TESSERA_RETURN_IF_ERROR(fields_.status());
    if (kind != "gpt2" && kind != "llama") {
      return absl::UnimplementedError(fields_.path() +
                                      ": tokenizer.ggml.model: " + in_quotes(kind) +
                                      " is not supported; supported are \"gpt2\" and \"llama\"");
    }
    TESSERA_RETURN_IF_ERROR(read_lists());
    return kind == "gpt2" ? byte_level() : scored();
  }

 private:
  absl::Status refuse(const std::string& key, const std::string& why) const {
    return absl::InvalidArgumentError(fields_.path() + ": " + key + ": " + why);
  }

  // Puts the file in front of an error about its tokens.
  absl::Status named(const absl::Status& status) const {
    return absl::Status(status.code(),
                        fields_.path() + ": the tokenizer: " + std::string(status.message()));
  }

  absl::StatusOr<json> read_list(const char* key, bool (json::*is)() const noexcept) const {
    TESSERA_ASSIGN_OR_RETURN(json list, model_.value(key));
    if (list.is_null()) return json::array();
    if (!list.is_array()) return refuse(key, "is no list");
    for (const json& item : list) {
      if (!(item.*is)()) return refuse(key, "has an element of another type");
    }
    return list;
  }

  absl::Status read_lists() {
    const char* const names[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
                                 "tokenizer.ggml.scores"};
    TESSERA_ASSIGN_OR_RETURN(lists_.tokens, model_.texts(names[0]));
    TESSERA_ASSIGN_OR_RETURN(lists_.types, read_list(names[1], &json::is_number_integer));
    TESSERA_ASSIGN_OR_RETURN(lists_.scores, read_list(names[2], &json::is_number));
    const size_t count = lists_.tokens.size();
    if (count == 0) return refuse(names[0], "is missing or empty");
    for (const json* list : {&lists_.types, &lists_.scores}) {
      if (!list->empty() && list->size() != count) {
        return refuse(names[list == &lists_.types ? 1 : 2], "has " + std::to_string(list->size()) +
                                                                " elements for " +
                                                                std::to_string(count) + " tokens");
      }
    }
    for (const json& type : lists_.types) {
      if (type < kGgufNormalToken || type > kGgufLastTokenType) {
        return refuse(names[1], "the type " + type.dump() + " is not known");
      }
    }
    return absl::OkStatus();
  }

  int type_of(size_t id) const {
    return lists_.types.empty() ? kGgufNormalToken : lists_.types[id].get<int>();
  }

  // Returns: the role's token, or a role without a token if the key is missing.
  TokenizerConfig::Role role(const char* key) {
    TokenizerConfig::Role role{true, std::nullopt};
    if (!fields_.has(key)) return role;
    const auto last = static_cast<int64_t>(lists_.tokens.size()) - 1;
    const auto id = static_cast<size_t>(fields_.integer(key, 0, last));
    role.text = std::string(lists_.tokens[id]);
    return role;
  }

  absl::StatusOr<TokenizerConfig> read_config(bool adds_bos) {
    TokenizerConfig config;
    config.bos_token = role("tokenizer.ggml.bos_token_id");
    config.eos_token = role("tokenizer.ggml.eos_token_id");
    config.add_bos_token = fields_.boolean_or("tokenizer.ggml.add_bos_token", adds_bos) &&
                           config.bos_token.text.has_value();
    config.add_eos_token = fields_.boolean_or("tokenizer.ggml.add_eos_token", false);
    config.add_prefix_space = fields_.boolean_or("tokenizer.ggml.add_space_prefix", true);
    TESSERA_RETURN_IF_ERROR(fields_.status());
    for (const TokenizerConfig::Role* one : {&config.bos_token, &config.eos_token}) {
      if (one->text) config.special_texts.insert(*one->text);
    }
    return config;
  }

  // Writes all but the long lists as a tokenizer.json, which has a reader.
  absl::StatusOr<std::unique_ptr<Tokenizer>> byte_level() {
    const std::string pre = fields_.text_or("tokenizer.ggml.pre", "default");
    TESSERA_RETURN_IF_ERROR(fields_.status());
    const GgufSplit* split = find_gguf_split(pre);
    if (split == nullptr) {
      return absl::UnimplementedError(fields_.path() + ": tokenizer.ggml.pre: " + in_quotes(pre) +
                                      " is not supported; supported are " + gguf_split_names());
    }
    TESSERA_ASSIGN_OR_RETURN(BpeLists lists, bpe_lists());
    TESSERA_ASSIGN_OR_RETURN(const TokenizerConfig config, read_config(split->adds_bos));
    json added = json::array();
    for (size_t id = 0; id < lists_.tokens.size(); ++id) {
      const int type = type_of(id);
      if (type == kGgufControlToken || type == kGgufUserDefinedToken) {
        added.push_back({{"id", id},
                         {"content", std::string(lists_.tokens[id])},
                         {"special", type == kGgufControlToken}});
      }
    }
    json file = {{"model", {{"type", "BPE"}, {"ignore_merges", split->ignore_merges}}},
                 {"added_tokens", std::move(added)},
                 {"pre_tokenizer", pre_tokenizer(*split)},
                 {"decoder", {{"type", "ByteLevel"}}}};
    if (split->composes || is_qwen()) file["normalizer"] = {{"type", "NFC"}};
    absl::StatusOr<std::unique_ptr<Tokenizer>> made =
        make_bpe_tokenizer(file, std::move(lists), config);
    return made.ok() ? std::move(made) : named(made.status());
  }

  absl::StatusOr<BpeLists> bpe_lists() const {
    BpeLists lists;
    for (size_t id = 0; id < lists_.tokens.size(); ++id) {
      lists.tokens.push_back({lists_.tokens[id], static_cast<int32_t>(id)});
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string_view> merges,
                             model_.texts("tokenizer.ggml.merges"));
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const auto sides = split_merge(merges[rank], rank);
      if (!sides.ok()) return named(sides.status());
      lists.merges.push_back(*sides);
    }
    return lists;
  }

  // As in transformers, the architecture decides too: old files of Qwen2 have no `pre`.
  bool is_qwen() { return absl::StartsWith(fields_.text_or("general.architecture", ""), "qwen"); }

  static json pre_tokenizer(const GgufSplit& split) {
    json steps = json::array();
    for (const char* pattern : split.patterns) {
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
    }
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
  }

  absl::StatusOr<std::unique_ptr<Tokenizer>> scored() {
    if (lists_.scores.empty()) return refuse("tokenizer.ggml.scores", "is missing");
    TESSERA_ASSIGN_OR_RETURN(const TokenizerConfig config, read_config(/*adds_bos=*/true));
    SentencePieceModel model;
    model.remove_extra_whitespaces = false;
    size_t bytes = 0;
    for (size_t id = 0; id < lists_.tokens.size(); ++id) {
      SentencePieceModel::Piece& piece = model.pieces.emplace_back();
      piece.text = std::string(lists_.tokens[id]);
      piece.score = lists_.scores[id].get<float>();
      piece.type = static_cast<SentencePieceModel::Type>(type_of(id));
      // The converter has undone the escape of spaces in these pieces.
      if (piece.type == SentencePieceModel::Type::user_defined) {
        absl::StrReplaceAll({{" ", std::string(kMetaspace)}}, &piece.text);
      }
      bytes += piece.type == SentencePieceModel::Type::byte ? 1 : 0;
    }
    model.byte_fallback = bytes > 0;
    TESSERA_RETURN_IF_ERROR(mark_unknown(model));
    if (const absl::Status checked = model.check(); !checked.ok()) return named(checked);
    absl::StatusOr<std::unique_ptr<Tokenizer>> made =
        make_sentencepiece_tokenizer(std::move(model), config);
    return made.ok() ? std::move(made) : named(made.status());
  }

  // Gemma's files give their unknown piece the type of a control token, and name it by a key.
  absl::Status mark_unknown(SentencePieceModel& model) {
    using Type = SentencePieceModel::Type;
    constexpr char kKey[] = "tokenizer.ggml.unknown_token_id";
    const auto is_unknown = [](const auto& piece) { return piece.type == Type::unknown; };
    if (std::ranges::any_of(model.pieces, is_unknown) || !fields_.has(kKey)) {
      return absl::OkStatus();
    }
    const int32_t id = fields_.integer(kKey, 0, std::ssize(model.pieces) - 1);
    TESSERA_RETURN_IF_ERROR(fields_.status());
    model.pieces[static_cast<size_t>(id)].type = Type::unknown;
    return absl::OkStatus();
  }

  const GgufModel& model_;
  JsonFields fields_;
  TokenLists lists_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> make_gguf_tokenizer(const GgufModel& model) {
  return GgufTokenizerBuilder(model).run();
}

absl::StatusOr<std::optional<std::string>> gguf_chat_template(const GgufModel& model,
                                                              std::string_view name) {
  JsonFields fields(model.fields(), model.path().string());
  const std::string key = "tokenizer.chat_template" + std::string(name);
  if (!fields.has(key.c_str())) return std::nullopt;
  const std::string source = fields.text(key.c_str());
  TESSERA_RETURN_IF_ERROR(fields.status());
  return source;
}

}  // namespace tessera
