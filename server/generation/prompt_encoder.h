#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/byte_budget.h"
#include "server/generation/text_room.h"
#include "server/request/generate_request.h"
#include "server/request/infill.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tessera {

// Prompts as token ids, and ids as text: applies the chat template and tokenizes. Thread-safe.
class PromptEncoder {
 public:
  struct Parts {
    std::string model_name;  // for errors
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<ChatTemplate> chat_template;  // null: chats are refused
    int32_t context = 0;                          // of a sequence, in tokens
    int32_t rows = 0;                             // ids of the model; see TextRoom
    std::size_t max_answer_bytes = 0;             // of one text
    ByteBudget* budget = nullptr;                 // of answers; not owned. Null: unbounded
  };
  explicit PromptEncoder(Parts parts);

  struct Encoded {
    std::vector<int32_t> ids;
    bool open_thought = false;       // a chat ends inside a model's thought
    std::vector<KeptPrefix> kept{};  // before the marks of a chat
  };

  // Returns: the ids that the engine computes. A prompt of ids is returned unchanged. Takes time in
  // proportion to the prompt.
  // Errors: those of tokenize(). InvalidArgument besides, without the work, for a text that cannot
  // fit the context.
  absl::StatusOr<Encoded> encode(const Prompt& prompt, const PromptOptions& options) const;

  // The same without a bound, as ids alone.
  // Errors: InvalidArgument (messages that the template refuses, no template, an infill for a model
  // without tokens for it).
  absl::StatusOr<std::vector<int32_t>> tokenize(const Prompt& prompt,
                                                const PromptOptions& options) const;

  // Returns: the text of a chat as the template makes it, with special tokens written out.
  // Errors: as tokenize().
  // Requires: the prompt is a chat.
  absl::StatusOr<std::string> render(const Prompt& prompt, const PromptOptions& options) const;

  // Returns: the text of ids, including special tokens. `room` (if not null) receives its room, to
  // be held until the client has it.
  // Errors, before the work: as TextRoom::for_text.
  absl::StatusOr<std::string> detokenize(std::span<const int32_t> ids,
                                         ByteBudget::Share* room = nullptr) const;

  // Returns: the bytes beyond which no text fits the context.
  std::size_t max_bytes() const;

  const Tokenizer& tokenizer() const { return *parts_.tokenizer; }
  const TextRoom& text_room() const { return text_room_; }
  // Of a model that can fill in the middle of a text.
  const std::optional<InfillTokens>& infill() const { return infill_; }

 private:
  // A chat as the template makes it.
  struct Rendered {
    std::vector<TextSegment> segments;
    bool open_thought = false;
  };
  absl::StatusOr<Encoded> encode(const Prompt& prompt, const PromptOptions& options,
                                 std::size_t max_bytes) const;
  absl::StatusOr<Rendered> render(const Conversation& conversation, const PromptOptions& options,
                                  std::size_t max_bytes) const;
  absl::StatusOr<std::vector<TextSegment>> render_segments(const Conversation& conversation,
                                                           bool add_generation_prompt) const;
  absl::StatusOr<std::vector<TextSegment>> segments_of(const std::string& text,
                                                       const PromptOptions& options) const;

  const Parts parts_;
  const TextRoom text_room_;
  const std::optional<InfillTokens> infill_;  // none: the model cannot
  ChatTemplate::Variables variables_;
};

}  // namespace tessera
