// Input: a chat template, and after each "%%" a message: a line with the role, then the content.
// Each content is enclosed in a private use character. Text in which the tokenizer looks for
// special tokens must not contain it, unless the template itself writes it.
#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/chat_template.h"

namespace tessera {
namespace {

constexpr std::string_view kMark = "\xEE\x80\x80";  // U+E000
constexpr size_t kMaxMessages = 8;
constexpr size_t kWork = size_t{1} << 22U;  // keeps hundreds of inputs a second, for any input

ChatMessage message_of(std::string_view part) {
  const size_t line = std::min(part.find('\n'), part.size());
  std::string content(kMark);
  content += part.substr(std::min(line + 1, part.size()));
  content += kMark;
  return {std::string(part.substr(0, line)), content};
}

}  // namespace
}  // namespace tessera

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto parts = parts_of(text_of(data, size), kMaxMessages + 1);
  const auto parsed = ChatTemplate::parse(parts[0]);
  if (!parsed.ok()) {
    TESSERA_CHECK(!parsed.status().message().empty(), "an error without a message");
    return 0;
  }
  std::vector<ChatMessage> messages;
  for (size_t i = 1; i < parts.size(); ++i) messages.push_back(message_of(parts[i]));
  if (messages.empty()) messages = {message_of("user\n a b c "), message_of("assistant\n{}")};
  ChatTemplate::Variables variables{"<s>", "</s>", true, 0};
  variables.max_work = kWork;
  const auto segments = (*parsed)->render({messages}, variables);
  if (!segments.ok()) return 0;
  const bool may_write_it = parts[0].find(kMark) != std::string_view::npos ||
                            parts[0].find('\\') != std::string_view::npos;
  for (const TextSegment& segment : *segments) {
    TESSERA_CHECK(
        !segment.parse_special || may_write_it || segment.text.find(kMark) == std::string::npos,
        "a message's text is taken for the template's");
  }
  return 0;
}
