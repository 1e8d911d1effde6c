#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace tessera {

// A place in a conversation up to which a client wants the prompt to stay in the prefix cache.
struct CacheMark {
  static constexpr std::size_t kWhole = std::numeric_limits<std::size_t>::max();

  std::size_t messages = 0;    // before the place; the last of them may be cut:
  std::size_t bytes = kWhole;  // of its content
  std::size_t calls = kWhole;  // of its calls of tools
  std::chrono::seconds ttl{300};
};

// Adds a mark that is not before those added earlier. Of marks with equal times the last one stays,
// because it keeps what the others keep.
void add_mark(std::vector<CacheMark>& marks, const CacheMark& mark);

// Returns: the conversation before a mark. Templates want a message that is not the system's: where
// there is none, the next one follows without its content.
Conversation cut_at(const Conversation& conversation, const CacheMark& mark);

// A prompt, and how others of its kind are made.
struct MarkedPrompt {
  const Conversation& conversation;
  std::span<const TextSegment> segments;  // as the template made them
  std::span<const int32_t> ids;
  std::function<absl::StatusOr<std::vector<TextSegment>>(const Conversation&)> render;
};

// Returns: for each mark the number of tokens before it, as far as they do not depend on what
// follows; 0 for a place that the template does not show.
std::vector<KeptPrefix> prefixes_before(std::span<const CacheMark> marks,
                                        const MarkedPrompt& prompt, const Tokenizer& tokenizer);

// Tokens of a prompt that were not cached before, and are kept from now on.
struct NewlyKept {
  int64_t shortly = 0;  // for at most kShortTtl
  int64_t long_time = 0;
};
inline constexpr std::chrono::seconds kShortTtl{300};
NewlyKept newly_kept(std::span<const KeptPrefix> asked, const PromptInCache& prompt);

}  // namespace tessera
