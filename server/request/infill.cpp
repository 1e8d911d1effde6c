#include "server/request/infill.h"

#include <algorithm>
#include <initializer_list>

namespace tessera {

namespace {

constexpr InfillFormat kFormats[] = {
    // Qwen's coders, CodeGemma, newer Granite
    {.prefix = "<|fim_prefix|>",
     .suffix = "<|fim_suffix|>",
     .middle = "<|fim_middle|>",
     .repository = "<|repo_name|>",
     .file = "<|file_sep|>"},
    {.prefix = "<|fim_prefix|>", .suffix = "<|fim_suffix|>", .middle = "<|fim_middle|>"},
    // StarCoder 2, older Granite
    {.prefix = "<fim_prefix>",
     .suffix = "<fim_suffix>",
     .middle = "<fim_middle>",
     .repository = "<repo_name>",
     .file = "<file_sep>"},
    {.prefix = "<fim_prefix>", .suffix = "<fim_suffix>", .middle = "<fim_middle>"},
    // DeepSeek's coders
    {.prefix = "<｜fim▁begin｜>", .suffix = "<｜fim▁hole｜>", .middle = "<｜fim▁end｜>"},
    // Codestral
    {.prefix = "[PREFIX]", .suffix = "[SUFFIX]", .middle = "", .suffix_first = true},
};

// Tokens that begin another file or fill a batch. A model writes them where the middle ends.
constexpr std::string_view kEnds[] = {"<|endoftext|>", "<|fim_pad|>",       "<|repo_name|>",
                                      "<|file_sep|>",  "<fim_pad>",         "<repo_name>",
                                      "<file_sep>",    "<|file_separator|>"};

// Returns: the id of a text that is one token. It need not be a special one.
std::optional<int32_t> one_token(const Tokenizer& tokenizer, std::string_view text) {
  const TextSegment segment{std::string(text), /*parse_special=*/true};
  const std::vector<int32_t> ids = tokenizer.encode({&segment, 1}, /*add_bos=*/false);
  const bool one =
      ids.size() == 1 && tokenizer.token_bytes(ids.front(), /*keep_special=*/true) == text;
  return one ? std::optional(ids.front()) : std::nullopt;
}

}  // namespace

std::optional<InfillTokens> infill_tokens_of(const Tokenizer& tokenizer) {
  const auto has = [&](std::string_view text) {
    return text.empty() || one_token(tokenizer, text).has_value();
  };
  for (const InfillFormat& format : kFormats) {
    const auto texts = {format.prefix, format.suffix, format.middle, format.repository,
                        format.file};
    if (std::all_of(texts.begin(), texts.end(), has)) {
      InfillTokens found{.format = &format};
      for (const std::string_view end : kEnds) {
        if (const std::optional<int32_t> id = one_token(tokenizer, end)) {
          found.ends.push_back(*id);
        }
      }
      return found;
    }
  }
  return std::nullopt;
}

std::vector<TextSegment> infill_prompt(const InfillFormat& format, const std::string& text,
                                       const Infill& infill, bool parse_special) {
  std::vector<TextSegment> segments;
  const auto add_token = [&](std::string_view token) {
    if (!token.empty()) {
      segments.push_back({std::string(token), /*parse_special=*/true});
    }
  };
  if (!infill.files.empty() && !format.repository.empty()) {
    add_token(format.repository);
    segments.push_back({"repository\n"});
  }
  for (const InfillFile& file : infill.files) {
    add_token(format.file);
    segments.push_back({file.name + "\n" + file.text + "\n"});
  }
  if (!infill.files.empty()) {
    add_token(format.file);
  }
  const auto add_part = [&](std::string_view token, const std::string& part) {
    add_token(token);
    segments.push_back({part, parse_special});
  };
  if (format.suffix_first) {
    add_part(format.suffix, infill.suffix);
    add_part(format.prefix, text);
  } else {
    add_part(format.prefix, text);
    add_part(format.suffix, infill.suffix);
  }
  add_token(format.middle);
  segments.push_back({infill.begin});
  return segments;
}

}  // namespace tessera
