#include "server/request/cache_marks.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera {
namespace {

// Returns: the part that two prompts begin with.
std::vector<TextSegment> common_beginning(std::span<const TextSegment> a,
                                          std::span<const TextSegment> b) {
  std::vector<TextSegment> common;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i].parse_special != b[i].parse_special) {
      break;
    }
    const std::string_view text = a[i].text;
    const auto end = std::ranges::mismatch(text, std::string_view(b[i].text)).in1;
    common.push_back({std::string(text.begin(), end), a[i].parse_special});
    if (end != text.end() || text.size() != b[i].text.size()) {
      break;
    }
  }
  return common;
}

}  // namespace

void add_mark(std::vector<CacheMark>& marks, const CacheMark& mark) {
  std::erase_if(marks, [&](const CacheMark& other) { return other.ttl == mark.ttl; });
  marks.push_back(mark);
}

Conversation cut_at(const Conversation& conversation, const CacheMark& mark) {
  Conversation cut{.tools = conversation.tools, .variables = conversation.variables};
  const std::vector<ChatMessage>& all = conversation.messages;
  const std::size_t messages = std::min(mark.messages, all.size());
  cut.messages.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(messages));
  if (messages > 0) {
    ChatMessage& last = cut.messages.back();
    last.content.resize(std::min(mark.bytes, last.content.size()));
    last.tool_calls.resize(std::min(mark.calls, last.tool_calls.size()));
  }
  const bool any = std::ranges::any_of(
      cut.messages, [](const ChatMessage& message) { return message.role != "system"; });
  if (!any && messages < all.size()) {
    cut.messages.push_back({.role = all[messages].role});
  }
  return cut;
}

// The prompt is made once more from the part before the mark. Where both differ, something follows
// the mark. Tokens are compared too, because one may reach over the mark.
std::vector<KeptPrefix> prefixes_before(std::span<const CacheMark> marks,
                                        const MarkedPrompt& prompt, const Tokenizer& tokenizer) {
  std::vector<KeptPrefix> kept;
  for (const CacheMark& mark : marks) {
    const auto segments = prompt.render(cut_at(prompt.conversation, mark));
    int32_t tokens = 0;
    if (segments.ok()) {
      const std::vector<int32_t> ids =
          tokenizer.encode(common_beginning(prompt.segments, *segments), /*add_bos=*/false);
      tokens = static_cast<int32_t>(std::ranges::mismatch(ids, prompt.ids).in1 - ids.begin());
    }
    kept.push_back({tokens, mark.ttl});
  }
  return kept;
}

NewlyKept newly_kept(std::span<const KeptPrefix> asked, const PromptInCache& prompt) {
  int64_t shortly = prompt.cached_tokens;
  int64_t long_time = prompt.cached_tokens;
  for (std::size_t i = 0; i < std::min(asked.size(), prompt.kept.size()); ++i) {
    int64_t& end = asked[i].ttl <= kShortTtl ? shortly : long_time;
    end = std::max<int64_t>(end, prompt.kept[i]);
  }
  return {.shortly = std::max<int64_t>(0, shortly - long_time),
          .long_time = long_time - prompt.cached_tokens};
}

}  // namespace tessera
