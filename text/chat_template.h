#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace tessera {

// A checkpoint's Jinja chat template, parsed once. Constructs that the interpreter does not support
// are errors of parse(), so that no request fails because of them later.
// Immutable; render() may be called from any thread.
//
// The language is the subset of Jinja that chat templates use, configured as in transformers:
// trim_blocks, lstrip_blocks, break and continue, tojson without HTML escapes, raise_exception,
// strftime_now, {% generation %}. Upper and lower case exist for ASCII letters only.
class ChatTemplate {
 public:
  // Errors: InvalidArgument with line and construct; also for a source above 1 MiB or not in UTF-8.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> parse(std::string_view source);

  virtual ~ChatTemplate() = default;

  struct Variables {
    std::string bos_token;
    std::string eos_token;
    bool add_generation_prompt = true;
    std::optional<int64_t> unix_seconds;  // time of strftime_now; default: the clock
    // Limit of bytes and steps: a second, at most 256 MiB. Less for small conversations
    // (jinja::allowed_work).
    size_t max_work = size_t{1} << 27U;
  };

  // Returns: the prompt. Text from a client, tools included, never has `parse_special`: special
  // tokens in it are plain text, so a message cannot end its own turn. A role counts as template
  // text if published templates know it, because some make a special token of it. The template
  // writes BOS itself. Tools that it would not print stand in its messages (plain_tools.h).
  // "developer" is the role "system" for a template that does not know it.
  // Errors: InvalidArgument with the text of raise_exception, with the line of a runtime error, for
  // tools or variables that are not JSON, and for a message with a role of which the template
  // prints nothing; also if it exceeds the limit of work or recurses too deeply, because the same
  // request never succeeds.
  virtual absl::StatusOr<std::vector<TextSegment>> render(const Conversation& conversation,
                                                          const Variables& variables) const = 0;
};

// Returns: the template of a model, or nullopt if it has none. Of a Hugging Face directory, reads
// chat_template.jinja, else "chat_template" of tokenizer_config.json. From a list of named
// templates it takes "default". Of a GGUF file, reads the metadata.
absl::StatusOr<std::optional<std::string>> find_chat_template(const std::filesystem::path& model);

// Returns: the model's template for chats with tools, if it has another one for them: the one named
// "tool_use" of a list, of the folder additional_chat_templates, or of a GGUF file's metadata.
// Errors: as find_chat_template.
absl::StatusOr<std::optional<std::string>> find_tool_template(const std::filesystem::path& model);

// Returns: a template that renders chats with tools by `tool_use`, and others by `plain`.
std::unique_ptr<ChatTemplate> with_tool_template(std::unique_ptr<ChatTemplate> plain,
                                                 std::unique_ptr<ChatTemplate> tool_use);

// Built-in templates: "llama2", "llama3", "mistral", "chatml", "zephyr".
// Returns: nullopt for other names.
std::optional<std::string_view> builtin_chat_template(std::string_view name);

// Returns: the names of the built-in templates, separated by ", ", for messages.
std::string builtin_chat_template_names();

}  // namespace tessera
