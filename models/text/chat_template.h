#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/tokenizer.h"

namespace tessera {

struct ChatMessage {
  std::string role;
  std::string content;
};

// A checkpoint's Jinja chat template, parsed once. What the interpreter does not know is an error
// of parse(), with line and construct, not a surprise in the middle of a request.
// Immutable; render() may be called from any thread.
//
// The language is Jinja's as transformers sets it up (trim_blocks, lstrip_blocks, break and
// continue, tojson without HTML escapes, raise_exception, strftime_now, {% generation %}), as far
// as chat templates use it. Upper and lower case are those of ASCII letters.
class ChatTemplate {
 public:
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> parse(std::string_view source);

  virtual ~ChatTemplate() = default;

  struct Variables {
    std::string bos_token;
    std::string eos_token;
    bool add_generation_prompt = true;
    std::optional<int64_t> unix_seconds;  // what strftime_now says; the clock if not given
    size_t max_work = size_t{1} << 29U;   // bytes made and steps: seconds, 512 MiB at most
  };

  // The prompt. Text that came from a message never has `parse_special`: special tokens in it are
  // plain text, so that a user cannot end his own turn. (A role is the template's own text if it
  // has only letters, digits, "_" and "-": templates make special tokens of it.) The template
  // writes BOS itself.
  // Errors: InvalidArgument with the template's own raise_exception text, or with the line where
  // the template does what cannot be done; ResourceExhausted where it never seems to end.
  virtual absl::StatusOr<std::vector<TextSegment>> render(const std::vector<ChatMessage>& messages,
                                                          const Variables& variables) const = 0;
};

// The template a Hugging Face directory brings: chat_template.jinja, else "chat_template" of
// tokenizer_config.json (of several named ones "default"). Nothing if it brings none.
absl::StatusOr<std::optional<std::string>> find_chat_template(
    const std::filesystem::path& directory);

// The well-known formats by name: "llama2", "llama3", "mistral", "chatml", "zephyr".
std::optional<std::string_view> builtin_chat_template(std::string_view name);

// Their names, separated by ", ", for messages.
std::string builtin_chat_template_names();

}  // namespace tessera
