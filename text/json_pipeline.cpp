#include "text/json_pipeline.h"

#include <utility>

#include "base/status_macros.h"
#include "text/json_file.h"
#include "text/sentencepiece_encoder.h"

namespace tessera {
namespace {

using nlohmann::json;

std::string type_of(const json& part) {
  const json& type = json_member(part, "type");
  return type.is_string() ? type.get<std::string>() : std::string();
}

bool text_is(const json& object, std::string_view name, std::string_view wanted) {
  const json& value = json_member(object, name);
  return value.is_string() && value.get_ref<const std::string&>() == wanted;
}

absl::Status unsupported(const std::string& part, const json& object, const std::string& why = {}) {
  const std::string type = type_of(object);
  return absl::UnimplementedError(part + " \"" + (type.empty() ? "?" : type) + "\"" +
                                  (why.empty() ? "" : " with " + why) + " is not supported");
}

// Returns: the single part, or the parts of a "Sequence" in order; empty for null.
absl::StatusOr<std::vector<const json*>> parts_of(const json& file, const std::string& name,
                                                  const std::string& list) {
  const json& part = json_member(file, name);
  if (part.is_null()) return std::vector<const json*>();
  if (!part.is_object()) return absl::InvalidArgumentError("\"" + name + "\" is not an object");
  if (type_of(part) != "Sequence") return std::vector<const json*>{&part};
  const json& items = json_member(part, list);
  if (!items.is_array()) {
    return absl::InvalidArgumentError("\"" + name + "\": a Sequence without \"" + list + "\"");
  }
  std::vector<const json*> parts;
  for (const json& item : items) parts.push_back(&item);
  return parts;
}

absl::StatusOr<bool> flag(const json& object, const char* name, bool fallback) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<bool> value, json_bool(object, name));
  return value.value_or(fallback);
}

class PipelineParser {
 public:
  explicit PipelineParser(const json& file) : file_(file) {}

  absl::StatusOr<JsonPipeline> run() {
    TESSERA_RETURN_IF_ERROR(normalizer());
    TESSERA_RETURN_IF_ERROR(pre_tokenizer());
    TESSERA_RETURN_IF_ERROR(post_processor());
    TESSERA_RETURN_IF_ERROR(decoder());
    return std::move(result_);
  }

 private:
  absl::Status normalizer() {
    TESSERA_ASSIGN_OR_RETURN(const auto parts, parts_of(file_, "normalizer", "normalizers"));
    for (const json* part : parts) {
      const std::string type = type_of(*part);
      if (type == "Prepend") {
        if (!text_is(*part, "prepend", kMetaspace) || result_.metaspace.marks_spaces) {
          return unsupported("normalizer", *part, "anything but \"▁\" at the beginning");
        }
        result_.metaspace.prefix = SpacePrefix::always;
      } else if (type == "Replace") {
        if (!text_is(json_member(*part, "pattern"), "String", " ") ||
            !text_is(*part, "content", kMetaspace)) {
          return unsupported("normalizer", *part, "anything but \"▁\" for \" \"");
        }
        result_.metaspace.marks_spaces = true;
      } else if (type == "NFC" && !marks_words_) {
        result_.nfc = true;
        continue;
      } else {
        return unsupported("normalizer", *part);
      }
      marks_words_ = true;
    }
    return absl::OkStatus();
  }

  absl::Status pre_tokenizer() {
    TESSERA_ASSIGN_OR_RETURN(const auto parts, parts_of(file_, "pre_tokenizer", "pretokenizers"));
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string type = type_of(*parts[i]);
      if (result_.byte_level) return unsupported("pre-tokenizer", *parts[i], "ByteLevel before it");
      if (type == "ByteLevel") {
        TESSERA_RETURN_IF_ERROR(byte_level(*parts[i]));
      } else if (type == "Split") {
        TESSERA_RETURN_IF_ERROR(split(*parts[i]));
      } else if (type == "Digits") {
        TESSERA_ASSIGN_OR_RETURN(const bool each, flag(*parts[i], "individual_digits", false));
        TESSERA_RETURN_IF_ERROR(add_pattern(each ? R"(\p{N})" : R"(\p{N}+)"));
      } else if (type == "Metaspace" && parts.size() == 1) {
        TESSERA_RETURN_IF_ERROR(metaspace(*parts[i]));
      } else {
        return unsupported("pre-tokenizer", *parts[i]);
      }
    }
    if (result_.byte_level ? marks_words_ : !result_.bytes.patterns.empty()) {
      return absl::UnimplementedError(
          "a ByteLevel pre-tokenizer with a normalizer other than NFC, and a Split without "
          "ByteLevel, are not supported");
    }
    return absl::OkStatus();
  }

  absl::Status add_pattern(const std::string& pattern) {
    TESSERA_ASSIGN_OR_RETURN(SplitPattern compiled, SplitPattern::compile(pattern));
    result_.bytes.patterns.push_back(std::move(compiled));
    return absl::OkStatus();
  }

  absl::Status byte_level(const json& part) {
    result_.byte_level = true;
    TESSERA_ASSIGN_OR_RETURN(result_.bytes.add_prefix_space, flag(part, "add_prefix_space", true));
    if (result_.bytes.add_prefix_space && !result_.bytes.patterns.empty()) {
      return unsupported("pre-tokenizer", part, "add_prefix_space after a Split");
    }
    TESSERA_ASSIGN_OR_RETURN(const bool use_regex, flag(part, "use_regex", true));
    return use_regex ? add_pattern(kGpt2Pattern) : absl::OkStatus();
  }

  absl::Status split(const json& part) {
    TESSERA_ASSIGN_OR_RETURN(const bool inverted, flag(part, "invert", false));
    if (!text_is(part, "behavior", "Isolated") || inverted) {
      return unsupported("pre-tokenizer", part, "any behavior but Isolated, not inverted,");
    }
    const json& pattern = json_member(json_member(part, "pattern"), "Regex");
    if (!pattern.is_string()) return unsupported("pre-tokenizer", part, "no Regex as its pattern");
    return add_pattern(pattern.get<std::string>());
  }

  absl::Status metaspace(const json& part) {
    if (!text_is(part, "replacement", kMetaspace)) {
      return unsupported("pre-tokenizer", part, "a replacement that is not \"▁\"");
    }
    if (result_.metaspace.prefix != SpacePrefix::never) {
      return unsupported("pre-tokenizer", part, "a Prepend normalizer");
    }
    TESSERA_ASSIGN_OR_RETURN(const SpacePrefix prefix, prefix_scheme(part));
    result_.metaspace.prefix = prefix;
    result_.metaspace.marks_spaces = true;
    result_.metaspace.prefix_unless_space = true;
    TESSERA_ASSIGN_OR_RETURN(result_.metaspace.splits_words, flag(part, "split", true));
    return absl::OkStatus();
  }

  // Reads "prepend_scheme", or the older "add_prefix_space".
  static absl::StatusOr<SpacePrefix> prefix_scheme(const json& part) {
    TESSERA_ASSIGN_OR_RETURN(const auto scheme, json_string(part, "prepend_scheme"));
    TESSERA_ASSIGN_OR_RETURN(const bool adds, flag(part, "add_prefix_space", true));
    if (!scheme) return adds ? SpacePrefix::always : SpacePrefix::never;
    if (*scheme == "always") return SpacePrefix::always;
    if (*scheme == "first") return SpacePrefix::first;
    if (*scheme == "never") return SpacePrefix::never;
    return absl::InvalidArgumentError("Metaspace: unknown prepend_scheme \"" + *scheme + "\"");
  }

  absl::Status post_processor() {
    TESSERA_ASSIGN_OR_RETURN(const auto parts, parts_of(file_, "post_processor", "processors"));
    for (const json* part : parts) {
      const std::string type = type_of(*part);
      if (type == "ByteLevel") continue;  // changes offsets only
      if (type != "TemplateProcessing") return unsupported("post-processor", *part);
      TESSERA_RETURN_IF_ERROR(template_processing(*part));
    }
    return absl::OkStatus();
  }

  absl::Status template_processing(const json& part) {
    const json& single = json_member(part, "single");
    if (!single.is_array()) {
      return absl::InvalidArgumentError("TemplateProcessing without a list \"single\"");
    }
    bool seen = false;
    for (const json& item : single) {
      const json& special = json_member(item, "SpecialToken");
      if (special.is_null()) {
        if (seen || !text_is(json_member(item, "Sequence"), "id", "A")) {
          return absl::InvalidArgumentError("TemplateProcessing: \"single\" is not about one text");
        }
        seen = true;
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(const auto name, json_string(special, "id"));
      const json& known = json_member(part, "special_tokens");
      const json& ids = json_member(json_member(known, name.value_or("")), "ids");
      if (!ids.is_array()) {
        return absl::InvalidArgumentError("TemplateProcessing: no ids for \"" + name.value_or("") +
                                          "\"");
      }
      for (const json& id : ids) {
        TESSERA_ASSIGN_OR_RETURN(const int32_t token, json_token_id(id, "TemplateProcessing"));
        (seen ? result_.after : result_.before).push_back(token);
      }
    }
    return absl::OkStatus();
  }

  absl::Status decoder() {
    TESSERA_ASSIGN_OR_RETURN(const auto parts, parts_of(file_, "decoder", "decoders"));
    for (const json* part : parts) {
      const std::string type = type_of(*part);
      if (type == "Metaspace") {
        TESSERA_ASSIGN_OR_RETURN(const SpacePrefix prefix, prefix_scheme(*part));
        result_.strips_leading_space = prefix != SpacePrefix::never;
      } else if (type == "Strip") {
        const json& start = json_member(*part, "start");
        result_.strips_leading_space =
            text_is(*part, "content", " ") && start.is_number_integer() && start.get<int64_t>() > 0;
      } else if (type != "ByteLevel" && type != "Replace" && type != "ByteFallback" &&
                 type != "Fuse") {
        return unsupported("decoder", *part);
      }
    }
    return absl::OkStatus();
  }

  const json& file_;
  JsonPipeline result_;
  bool marks_words_ = false;  // by a normalizer
};

}  // namespace

absl::StatusOr<JsonPipeline> JsonPipeline::parse(const json& file) {
  return PipelineParser(file).run();
}

}  // namespace tessera
