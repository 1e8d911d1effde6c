#include "server/responses/old_turns.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace tessera {
namespace {

using Messages = std::vector<ChatMessage>;

// A text is counted in parts of so many bytes, so that a long one is left when the limit is passed.
constexpr std::size_t kPart = 16 << 10;

// Rounds that drop no more turns than they must. Later ones drop half of those left, because the
// template prints other tokens than those that were counted.
constexpr int kExactRounds = 3;

// Consecutive messages that begin with one of the user.
struct Turn {
  std::ptrdiff_t messages = 0;
  int64_t tokens = 0;
};

// Counts the tokens of messages without those of the template, up to a limit.
class Count {
 public:
  Count(const Service& service, int64_t limit)
      : tokenizer_(service.tokenizer()), bytes_left_(service.prompts().max_bytes()), left_(limit) {}

  bool full() const { return left_ < 0; }

  void add(std::string_view text) {
    if (text.size() > bytes_left_) {
      left_ = -1;
      return;
    }
    bytes_left_ -= text.size();
    while (!text.empty() && !full()) {
      std::size_t length = std::min(text.size(), kPart);
      while (length < text.size() && length > 1 && (text[length] & '\xc0') == '\x80') {
        --length;  // to the beginning of a character
      }
      const TextSegment part{std::string(text.substr(0, length)), /*parse_special=*/false};
      left_ -= std::ssize(tokenizer_.encode({&part, 1}, /*add_bos=*/false));
      text.remove_prefix(length);
    }
  }

  // Returns: the tokens of the messages, at least 1 of each, as far as they were counted.
  template <class Iterator>
  int64_t add(Iterator first, Iterator last) {
    const int64_t before = left_;
    for (auto message = first; message != last && !full(); ++message) {
      --left_;
      add(message->content);
      add(message->reasoning);
      add(message->name);
      for (const ToolCall& call : message->tool_calls) {
        add(call.name);
        add(call.arguments);
      }
    }
    return before - left_;
  }

 private:
  const Tokenizer& tokenizer_;
  std::size_t bytes_left_;
  int64_t left_;
};

std::vector<Turn> turns_of(Messages::const_iterator first, Messages::const_iterator last) {
  std::vector<Turn> turns;
  for (auto message = first; message != last; ++message) {
    if (turns.empty() || message->role == "user") {
      turns.emplace_back();
    }
    ++turns.back().messages;
  }
  return turns;
}

// Returns: how many of the turns must go so that about `excess` fewer tokens are left, at least
// `least` and all but the last at most. around: tokens of the template around each message.
std::size_t turns_over(const std::vector<Turn>& turns, int64_t excess, int64_t around,
                       std::size_t least) {
  std::size_t count = 0;
  while (count + 1 < turns.size() && (excess > 0 || count < least)) {
    excess -= turns[count].tokens + around * turns[count].messages;
    ++count;
  }
  return count;
}

// Drops turns that make the prompt, as the template prints it, too long.
absl::Status fit(const Service& service, const PromptOptions& options, int64_t limit,
                 std::vector<Turn> turns, Prompt& prompt) {
  Messages& messages = std::get<Conversation>(prompt).messages;
  for (int round = 1; turns.size() > 1; ++round) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                             service.prompts().tokenize(prompt, options));
    const int64_t excess = std::ssize(ids) - limit;
    if (excess <= 0) {
      break;
    }
    int64_t counted = 0;
    std::ptrdiff_t of_turns = 0;
    for (const Turn& turn : turns) {
      counted += turn.tokens;
      of_turns += turn.messages;
    }
    const int64_t around = std::max<int64_t>(0, std::ssize(ids) - counted) / std::ssize(messages);
    const std::size_t least = round > kExactRounds ? (turns.size() + 1) / 2 : 1;
    const std::size_t dropped = turns_over(turns, excess, around, least);
    const auto begin = messages.end() - of_turns;
    auto end = begin;
    for (std::size_t i = 0; i < dropped; ++i) {
      end += turns[i].messages;
    }
    messages.erase(begin, end);
    turns.erase(turns.begin(), turns.begin() + static_cast<std::ptrdiff_t>(dropped));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status drop_old_turns(const Service& service, const GenerateRequest& each, Prompt& prompt) {
  auto& conversation = std::get<Conversation>(prompt);
  Messages& messages = conversation.messages;
  const int64_t context = service.engine().options().context;
  const int64_t room =
      each.max_tokens ? std::min<int64_t>(*each.max_tokens, context / 2) : context / 8;
  const auto first = std::find_if_not(messages.begin(), messages.end(), [](const auto& message) {
    return message.role == "system" || message.role == "developer";
  });
  std::vector<Turn> turns = turns_of(first, messages.end());
  if (turns.size() < 2) {
    return absl::OkStatus();
  }
  Count count(service, context - room);
  for (const std::string& tool : conversation.tools) {
    count.add(tool);
  }
  count.add(messages.begin(), first);
  auto kept = messages.end() - turns.back().messages;
  turns.back().tokens = count.add(kept, messages.end());
  std::size_t oldest = turns.size() - 1;
  for (; oldest > 0 && !count.full(); --oldest) {
    const auto begin = kept - turns[oldest - 1].messages;
    turns[oldest - 1].tokens = count.add(begin, kept);
    if (count.full()) {
      break;
    }
    kept = begin;
  }
  messages.erase(first, kept);
  turns.erase(turns.begin(), turns.begin() + static_cast<std::ptrdiff_t>(oldest));
  return fit(service, each.prompt_options, context - room, std::move(turns), prompt);
}

}  // namespace tessera
