#include "text/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "files/json_fields.h"
#include "text/json_file.h"
#include "text/json_pipeline.h"
#include "text/nfc.h"
#include "text/piece_tokenizer.h"
#include "text/sentencepiece_encoder.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ids = std::unordered_map<std::string_view, int32_t>;

// A byte-level vocabulary writes a byte as a character of at most two bytes.
constexpr size_t kMostBytesOfByte = 2;

std::string byte_piece(unsigned byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", byte);
  return text;
}

class JsonTokenizerBuilder {
 public:
  // lists: empty: those of `file`
  JsonTokenizerBuilder(const json& file, BpeLists lists, const TokenizerConfig& config)
      : file_(file),
        model_(json_member(file, "model")),
        config_(config),
        lists_(std::move(lists)) {}

  absl::StatusOr<std::unique_ptr<Tokenizer>> run() {
    TESSERA_RETURN_IF_ERROR(check_model());
    TESSERA_ASSIGN_OR_RETURN(pipeline_, JsonPipeline::parse(file_));
    if (lists_.tokens.empty()) {
      TESSERA_ASSIGN_OR_RETURN(lists_, read_bpe_lists(model_));
    }
    TESSERA_RETURN_IF_ERROR(read_vocabulary());
    TESSERA_RETURN_IF_ERROR(read_added_tokens());
    TESSERA_RETURN_IF_ERROR(add_configured_tokens());
    TESSERA_RETURN_IF_ERROR(read_settings());
    fill_plain_ids();
    TESSERA_RETURN_IF_ERROR(read_merges());
    fill_pieces();
    TESSERA_RETURN_IF_ERROR(read_roles());
    return finish();
  }

 private:
  absl::Status check_model() const {
    TESSERA_ASSIGN_OR_RETURN(const auto type, json_string(model_, "type"));
    // Files from before 2020 have no type; "merges" identifies BPE.
    if (type.value_or(model_.contains("merges") ? "BPE" : "?") != "BPE") {
      return absl::UnimplementedError("model \"" + type.value_or("?") +
                                      "\" is not supported, only BPE");
    }
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      TESSERA_ASSIGN_OR_RETURN(const auto text, json_string(model_, name));
      if (!text.value_or("").empty()) {
        return absl::UnimplementedError(std::string("model setting ") + name + " is not supported");
      }
    }
    const json& dropout = json_member(model_, "dropout");
    if (!dropout.is_null() && dropout != 0) {
      return absl::UnimplementedError("model setting dropout is not supported");
    }
    return absl::OkStatus();
  }

  absl::Status read_vocabulary() {
    ids_.reserve(lists_.tokens.size());
    for (const auto& [text, id] : lists_.tokens) {
      if (!ids_.emplace(text, id).second) {
        return absl::InvalidArgumentError("the token " + in_quotes(text) + " is there twice");
      }
      const auto index = static_cast<size_t>(id);
      if (index >= texts_.size()) texts_.resize(std::max(index + 1, lists_.tokens.size()));
      if (texts_[index]) {
        return absl::InvalidArgumentError(in_quotes(*texts_[index]) + " and " + in_quotes(text) +
                                          " have the same id " + std::to_string(id));
      }
      texts_[index] = text;
    }
    return absl::OkStatus();
  }

  absl::Status add(AddedToken token) {
    const auto known = ids_.find(token.content);
    if (known != ids_.end() && known->second != token.id) {
      return absl::InvalidArgumentError("added token \"" + token.content + "\" has id " +
                                        std::to_string(token.id) + ", the vocabulary says " +
                                        std::to_string(known->second));
    }
    const auto index = static_cast<size_t>(token.id);
    const auto owner = index < texts_.size() ? texts_[index] : std::nullopt;
    if (owner && *owner != token.content) {
      return absl::InvalidArgumentError("added token " + std::to_string(token.id) + " " +
                                        in_quotes(token.content) + " is " + in_quotes(*owner) +
                                        " in the vocabulary");
    }
    token.special = token.special || config_.special_texts.count(token.content) != 0;
    return parts_.added.add(std::move(token));
  }

  absl::Status read_added_tokens() {
    const json& list = json_member(file_, "added_tokens");
    if (list.is_null()) return absl::OkStatus();
    if (!list.is_array()) return absl::InvalidArgumentError("\"added_tokens\" is not a list");
    for (const json& item : list) {
      TESSERA_ASSIGN_OR_RETURN(const int32_t id,
                               json_token_id(json_member(item, "id"), "an added token"));
      TESSERA_ASSIGN_OR_RETURN(AddedToken token, parse_added_token(item, id));
      TESSERA_RETURN_IF_ERROR(add(std::move(token)));
    }
    return absl::OkStatus();
  }

  // Adds tokens that only the files beside tokenizer.json contain, and those with a role there.
  absl::Status add_configured_tokens() {
    for (const AddedToken& token : config_.added_tokens) {
      if (parts_.added.find(token.content) != nullptr) continue;
      TESSERA_RETURN_IF_ERROR(add(token));
    }
    for (const std::string& text : config_.special_texts) {
      const auto known = ids_.find(text);
      if (known == ids_.end() || parts_.added.find(text) != nullptr) continue;
      AddedToken token;
      token.id = known->second;
      token.content = text;
      TESSERA_RETURN_IF_ERROR(add(std::move(token)));
    }
    return absl::OkStatus();
  }

  absl::Status read_settings() {
    const std::pair<const char*, bool*> flags[] = {{"byte_fallback", &vocabulary_.byte_fallback},
                                                   {"fuse_unk", &vocabulary_.fuse_unknown},
                                                   {"ignore_merges", &vocabulary_.ignore_merges}};
    for (const auto& [name, setting] : flags) {
      TESSERA_ASSIGN_OR_RETURN(const auto value, json_bool(model_, name));
      *setting = value.value_or(false);
    }
    TESSERA_ASSIGN_OR_RETURN(const auto unknown, json_string(model_, "unk_token"));
    if (!unknown) return absl::OkStatus();
    const auto found = ids_.find(*unknown);
    if (found == ids_.end()) {
      return absl::InvalidArgumentError("unk_token \"" + *unknown + "\" is not in the vocabulary");
    }
    vocabulary_.unknown = found->second;
    return absl::OkStatus();
  }

  bool is_special(int32_t id) const {
    const AddedToken* token = parts_.added.find_id(id);
    return token != nullptr && token->special;
  }

  bool is_byte(std::string_view text) const {
    return vocabulary_.byte_fallback && bytes_by_text_.count(std::string(text)) != 0;
  }

  // Fills the ids that plain text can be encoded to: all except special tokens and byte pieces. Of
  // a byte-level vocabulary, texts are looked up byte by byte, and whole only with ignore_merges.
  void fill_plain_ids() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(byte_piece(byte));
      bytes_[byte] = found == ids_.end() ? -1 : found->second;
      bytes_by_text_.emplace(byte_piece(byte), static_cast<char>(byte));
    }
    for (const auto& [text, id] : lists_.tokens) {
      if (is_special(id)) continue;
      if (pipeline_.byte_level) {
        if (!vocabulary_.ignore_merges && text.size() > kMostBytesOfByte) continue;
        if (auto bytes = decode_byte_level(text)) vocabulary_.ids.emplace(std::move(*bytes), id);
      } else if (!is_byte(text)) {
        vocabulary_.ids.emplace(text, id);
      }
    }
  }

  absl::Status read_merges() {
    std::string both;
    vocabulary_.merges.reserve(lists_.merges.size());
    for (size_t rank = 0; rank < lists_.merges.size(); ++rank) {
      const auto& [left, right] = lists_.merges[rank];
      both.assign(left).append(right);
      int32_t found[3] = {};
      const std::string_view names[3] = {left, right, both};
      for (size_t i = 0; i < 3; ++i) {
        const auto id = ids_.find(names[i]);
        if (id == ids_.end()) {
          return absl::InvalidArgumentError("merge " + std::to_string(rank) + " needs " +
                                            in_quotes(names[i]) +
                                            ", which is not in the vocabulary");
        }
        found[i] = id->second;
      }
      if (is_special(found[2]) || is_byte(both)) continue;
      vocabulary_.merges.emplace(BpeVocabulary::merge_key(found[0], found[1]),
                                 BpeMerge{static_cast<uint32_t>(rank), found[2]});
    }
    return absl::OkStatus();
  }

  std::string printed(std::string_view text) const {
    if (pipeline_.byte_level) return decode_byte_level(text).value_or(std::string(text));
    std::string result(text);
    if (is_byte(text)) return {bytes_by_text_.at(result)};
    if (!pipeline_.metaspace.marks_spaces) return result;
    for (size_t at = result.find(kMetaspace); at != std::string::npos;
         at = result.find(kMetaspace, at)) {
      result.replace(at, kMetaspace.size(), " ");
    }
    return result;
  }

  void fill_pieces() {
    parts_.pieces.resize(texts_.size());
    for (const auto& [text, id] : lists_.tokens) {
      parts_.pieces[static_cast<size_t>(id)].bytes = printed(text);
    }
    put_added_pieces(parts_);
  }

  std::optional<int32_t> find_token(const std::string& text) const {
    if (const AddedToken* token = parts_.added.find(text)) return token->id;
    const auto found = ids_.find(text);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

  absl::StatusOr<std::optional<int32_t>> role(const TokenizerConfig::Role& role,
                                              const std::vector<int32_t>& fallback) const {
    if (!role.stated) {
      return fallback.empty() ? std::nullopt : std::optional<int32_t>(fallback.front());
    }
    if (!role.text) return std::nullopt;
    const auto id = find_token(*role.text);
    if (id) return id;
    return absl::InvalidArgumentError("\"" + *role.text +
                                      "\" of tokenizer_config.json is no token");
  }

  absl::Status read_roles() {
    TESSERA_ASSIGN_OR_RETURN(parts_.bos, role(config_.bos_token, pipeline_.before));
    TESSERA_ASSIGN_OR_RETURN(parts_.eos, role(config_.eos_token, pipeline_.after));
    for (const std::vector<int32_t>& ids : {pipeline_.before, pipeline_.after}) {
      for (const int32_t id : ids) {
        if (static_cast<size_t>(id) >= parts_.pieces.size()) {
          return absl::InvalidArgumentError("TemplateProcessing: there is no token " +
                                            std::to_string(id));
        }
      }
    }
    parts_.bos_prefix = pipeline_.before;
    if (config_.add_bos_token) {
      if (*config_.add_bos_token && !parts_.bos) {
        return absl::InvalidArgumentError("add_bos_token, but there is no bos_token");
      }
      parts_.bos_prefix.clear();
      if (*config_.add_bos_token) parts_.bos_prefix.push_back(*parts_.bos);
    }
    parts_.text_end = pipeline_.after;
    if (config_.add_eos_token) {
      parts_.text_end.clear();
      if (*config_.add_eos_token && parts_.eos) parts_.text_end.push_back(*parts_.eos);
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Tokenizer> finish() {
    parts_.strips_leading_space = pipeline_.strips_leading_space;
    parts_.encoder =
        pipeline_.byte_level
            ? make_byte_level_encoder(std::move(vocabulary_), std::move(pipeline_.bytes))
            : make_metaspace_encoder(std::move(vocabulary_), pipeline_.metaspace, bytes_);
    if (pipeline_.nfc) parts_.encoder = make_nfc_encoder(std::move(parts_.encoder));
    return make_piece_tokenizer(std::move(parts_));
  }

  const json& file_;
  const json& model_;
  const TokenizerConfig& config_;
  JsonPipeline pipeline_;
  BpeLists lists_;
  Ids ids_;                                             // the vocabulary as written in the file
  std::vector<std::optional<std::string_view>> texts_;  // the same by id
  std::unordered_map<std::string, char> bytes_by_text_;
  std::array<int32_t, 256> bytes_{};
  BpeVocabulary vocabulary_;
  PieceTokenizerParts parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> make_json_tokenizer(const json& file,
                                                               const TokenizerConfig& config) {
  return JsonTokenizerBuilder(file, {}, config).run();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(const json& file, BpeLists lists,
                                                              const TokenizerConfig& config) {
  return JsonTokenizerBuilder(file, std::move(lists), config).run();
}

}  // namespace tessera
