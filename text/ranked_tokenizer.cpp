#include "text/ranked_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "text/json_file.h"
#include "text/piece_tokenizer.h"
#include "text/ranked_encoder.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr int32_t kLlama3Specials = 256;

// Adds a token of the vocabulary.
// Errors: InvalidArgument for no base64, and for bytes that are there already.
absl::Status add_rank(std::string_view base64, uint32_t rank, RankedVocabulary& vocabulary,
                      PieceTokenizerParts& parts) {
  std::string bytes;
  if (!absl::Base64Unescape(absl::string_view(base64.data(), base64.size()), &bytes) ||
      bytes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("token ", rank, " is no base64"));
  }
  const size_t id = static_cast<size_t>(vocabulary.first_id) + rank;
  if (parts.pieces.size() <= id) parts.pieces.resize(id + 1);
  parts.pieces[id].bytes = bytes;
  if (!vocabulary.ranks.emplace(std::move(bytes), rank).second) {
    return absl::InvalidArgumentError(absl::StrCat("token ", rank, " is there twice"));
  }
  return absl::OkStatus();
}

absl::Status add_special(int32_t id, std::string text, PieceTokenizerParts& parts) {
  AddedToken token;
  token.id = id;
  token.content = std::move(text);
  token.special = true;
  return parts.added.add(std::move(token));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> finish(RankedVocabulary vocabulary,
                                                  const std::string& pattern,
                                                  PieceTokenizerParts parts) {
  for (int byte = 0; byte < 256; ++byte) {
    if (!vocabulary.ranks.contains(std::string(1, static_cast<char>(byte)))) {
      return absl::InvalidArgumentError(absl::StrCat("there is no token for the byte ", byte));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(SplitPattern compiled, SplitPattern::compile(pattern));
  if (parts.bos) parts.bos_prefix = {*parts.bos};
  put_added_pieces(parts);
  parts.encoder = make_ranked_encoder(std::move(vocabulary), std::move(compiled));
  return make_piece_tokenizer(std::move(parts));
}

// Returns: the special tokens of Llama 3.1 in the order of their ids.
std::vector<std::string> llama3_specials() {
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|reserved_special_token_2|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>"};
  for (int32_t i = 3; std::ssize(names) < kLlama3Specials; ++i) {
    names.push_back(absl::StrCat("<|reserved_special_token_", i, "|>"));
  }
  return names;
}

absl::Status add_specials(const TokenizerConfig& config, PieceTokenizerParts& parts) {
  const auto first = static_cast<int32_t>(parts.pieces.size());
  if (config.added_tokens.empty()) {
    const std::vector<std::string> names = llama3_specials();
    for (size_t i = 0; i < names.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(add_special(first + static_cast<int32_t>(i), names[i], parts));
    }
    return absl::OkStatus();
  }
  for (const AddedToken& token : config.added_tokens) {
    if (token.id < first) {
      return absl::InvalidArgumentError(absl::StrCat("added token ", token.id, " \"", token.content,
                                                     "\" has an id of the vocabulary"));
    }
    TESSERA_RETURN_IF_ERROR(parts.added.add(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int32_t>> find_ranked_role(const TokenizerConfig::Role& role,
                                                        const std::string& fallback,
                                                        const AddedTokens& added) {
  if (role.stated && !role.text) return std::nullopt;
  const AddedToken* token = added.find(role.stated ? *role.text : fallback);
  if (token != nullptr) return token->id;
  if (!role.stated) return std::nullopt;
  return absl::InvalidArgumentError("\"" + *role.text + "\" of tokenizer_config.json is no token");
}

// A file of Mistral's, read field by field.
class Tekken {
 public:
  explicit Tekken(const json& file) : file_(file), config_(json_member(file, "config")) {}

  absl::StatusOr<std::unique_ptr<Tokenizer>> run() {
    TESSERA_ASSIGN_OR_RETURN(const auto pattern, json_string(config_, "pattern"));
    if (!pattern) return absl::InvalidArgumentError("config has no \"pattern\"");
    TESSERA_ASSIGN_OR_RETURN(const int32_t all, count("default_vocab_size"));
    TESSERA_ASSIGN_OR_RETURN(specials_, count("default_num_special_tokens"));
    if (all <= specials_) {
      return absl::InvalidArgumentError("default_vocab_size is not above the special tokens");
    }
    TESSERA_RETURN_IF_ERROR(read_specials());
    TESSERA_RETURN_IF_ERROR(read_vocabulary(static_cast<size_t>(all - specials_)));
    return finish(std::move(vocabulary_), *pattern, std::move(parts_));
  }

 private:
  absl::StatusOr<int32_t> count(const char* name) const {
    return json_token_id(json_member(config_, name), name);
  }

  // Ids without a name are "<SPECIAL_id>", as in mistral-common.
  absl::Status read_specials() {
    const json& list = json_member(file_, "special_tokens");
    for (const json& item : list.is_array() ? list : older_specials()) {
      TESSERA_ASSIGN_OR_RETURN(const int32_t id,
                               json_token_id(json_member(item, "rank"), "a special token"));
      TESSERA_ASSIGN_OR_RETURN(const auto text, json_string(item, "token_str"));
      if (!text || id >= specials_) {
        return absl::InvalidArgumentError(
            absl::StrCat("special token ", id, " has no text, or is beyond ", specials_));
      }
      TESSERA_RETURN_IF_ERROR(add_special(id, *text, parts_));
    }
    for (int32_t id = 0; id < specials_; ++id) {
      if (parts_.added.find_id(id) != nullptr) continue;
      TESSERA_RETURN_IF_ERROR(add_special(id, absl::StrCat("<SPECIAL_", id, ">"), parts_));
    }
    const auto id_of = [&](const char* text) -> std::optional<int32_t> {
      const AddedToken* token = parts_.added.find(text);
      return token == nullptr ? std::nullopt : std::optional(token->id);
    };
    parts_.bos = id_of("<s>");
    parts_.eos = id_of("</s>");
    return absl::OkStatus();
  }

  // Files of 2024 do not list their special tokens.
  static const json& older_specials() {
    static const json kSpecials = [] {
      json all = json::array();
      for (const char* text : {"<unk>",
                               "<s>",
                               "</s>",
                               "[INST]",
                               "[/INST]",
                               "[AVAILABLE_TOOLS]",
                               "[/AVAILABLE_TOOLS]",
                               "[TOOL_RESULTS]",
                               "[/TOOL_RESULTS]",
                               "[TOOL_CALLS]",
                               "[IMG]",
                               "<pad>",
                               "[IMG_BREAK]",
                               "[IMG_END]",
                               "[PREFIX]",
                               "[MIDDLE]",
                               "[SUFFIX]",
                               "[SYSTEM_PROMPT]",
                               "[/SYSTEM_PROMPT]",
                               "[TOOL_CONTENT]"}) {
        all.push_back({{"rank", all.size()}, {"token_str", text}});
      }
      return all;
    }();
    return kSpecials;
  }

  absl::Status read_vocabulary(size_t count) {
    const json& list = json_member(file_, "vocab");
    if (!list.is_array() || list.size() < count) {
      return absl::InvalidArgumentError(absl::StrCat("\"vocab\" is no list of ", count, " tokens"));
    }
    vocabulary_.first_id = specials_;
    for (size_t rank = 0; rank < count; ++rank) {
      TESSERA_ASSIGN_OR_RETURN(const int32_t own,
                               json_token_id(json_member(list[rank], "rank"), "a token"));
      TESSERA_ASSIGN_OR_RETURN(const auto bytes, json_string(list[rank], "token_bytes"));
      if (std::cmp_not_equal(own, rank) || !bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("token ", rank, " has another rank, or no \"token_bytes\""));
      }
      TESSERA_RETURN_IF_ERROR(add_rank(*bytes, static_cast<uint32_t>(rank), vocabulary_, parts_));
    }
    return absl::OkStatus();
  }

  const json& file_;
  const json& config_;
  int32_t specials_ = 0;
  RankedVocabulary vocabulary_;
  PieceTokenizerParts parts_;
};

}  // namespace

bool is_tiktoken_model(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min(bytes.find('\n'), bytes.size()));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || line.substr(space + 1) != "0") return false;
  std::string decoded;
  return absl::Base64Unescape(absl::string_view(line.data(), space), &decoded);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> make_tiktoken_tokenizer(std::string_view bytes,
                                                                   const TokenizerConfig& config) {
  RankedVocabulary vocabulary;
  PieceTokenizerParts parts;
  uint32_t next = 0;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(bytes.data(), bytes.size()), '\n', absl::SkipEmpty())) {
    const size_t space = line.find(' ');
    uint32_t rank = 0;
    const auto [end, error] = std::from_chars(line.data() + std::min(space, line.size() - 1) + 1,
                                              line.data() + line.size(), rank);
    if (space == absl::string_view::npos || error != std::errc() ||
        end != line.data() + line.size() || rank != next) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", next + 1, " is not a base64 string and the rank ", next));
    }
    TESSERA_RETURN_IF_ERROR(add_rank({line.data(), space}, next++, vocabulary, parts));
  }
  TESSERA_RETURN_IF_ERROR(add_specials(config, parts));
  TESSERA_ASSIGN_OR_RETURN(parts.bos,
                           find_ranked_role(config.bos_token, "<|begin_of_text|>", parts.added));
  TESSERA_ASSIGN_OR_RETURN(parts.eos,
                           find_ranked_role(config.eos_token, "<|end_of_text|>", parts.added));
  return finish(std::move(vocabulary), kLlama3Pattern, std::move(parts));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> make_tekken_tokenizer(const json& file) {
  return Tekken(file).run();
}

}  // namespace tessera
