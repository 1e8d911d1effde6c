#include "server/generation/prompt_encoder.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/generation/prompt_room.h"
#include "server/generation/prompt_segments.h"
#include "text/detokenizer.h"

namespace tessera {
namespace {

// A normalizer may shorten a text to this share before it becomes tokens.
constexpr std::size_t kNormalizedShare = 4;

}  // namespace

PromptEncoder::PromptEncoder(Parts parts)
    : parts_(std::move(parts)),
      text_room_(*parts_.tokenizer, parts_.rows, parts_.max_answer_bytes, parts_.budget),
      infill_(infill_tokens_of(*parts_.tokenizer)) {
  if (const auto id = tokenizer().bos_id()) {
    variables_.bos_token = tokenizer().token_bytes(*id, true);
  }
  if (const auto id = tokenizer().eos_id()) {
    variables_.eos_token = tokenizer().token_bytes(*id, true);
  }
}

absl::StatusOr<PromptEncoder::Encoded> PromptEncoder::encode(const Prompt& prompt,
                                                             const PromptOptions& options) const {
  return encode(prompt, options, max_bytes());
}

absl::StatusOr<std::vector<int32_t>> PromptEncoder::tokenize(const Prompt& prompt,
                                                             const PromptOptions& options) const {
  TESSERA_ASSIGN_OR_RETURN(Encoded encoded,
                           encode(prompt, options, std::numeric_limits<std::size_t>::max()));
  return std::move(encoded.ids);
}

std::size_t PromptEncoder::max_bytes() const {
  return static_cast<std::size_t>(parts_.context) * text_room_.longest_token() * kNormalizedShare;
}

absl::StatusOr<std::vector<TextSegment>> PromptEncoder::segments_of(
    const std::string& text, const PromptOptions& options) const {
  if (!options.infill.has_value()) {
    return std::vector<TextSegment>{{text, options.parse_special}};
  }
  if (!infill_.has_value()) {
    const std::string field(options.infill->field);
    return invalid_field(
        field,
        fmt::format("{}: the model {} has no tokens to fill in the middle of a text", field,
                    parts_.model_name),
        "unsupported_parameter");
  }
  return infill_prompt(*infill_->format, text, *options.infill, options.parse_special);
}

// Errors: as tokenize(); InvalidArgument besides, without the work, if the text has more than
// `max_bytes`.
absl::StatusOr<PromptEncoder::Encoded> PromptEncoder::encode(const Prompt& prompt,
                                                             const PromptOptions& options,
                                                             std::size_t max_bytes) const {
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TextSegment> segments, segments_of(*text, options));
    TESSERA_RETURN_IF_ERROR(check_bytes("prompt", bytes_of(segments), max_bytes, parts_.context));
    return Encoded{tokenizer().encode(segments, options.add_bos)};
  }
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
    return Encoded{*ids};
  }
  const auto& chat = std::get<Conversation>(prompt);
  TESSERA_ASSIGN_OR_RETURN(const Rendered rendered, render(chat, options, max_bytes));
  // The template writes the BOS token.
  Encoded encoded{tokenizer().encode(rendered.segments, /*add_bos=*/false), rendered.open_thought};
  const auto render_part = [this](const Conversation& part) {
    return render_segments(part, /*add_generation_prompt=*/false);
  };
  encoded.kept = prefixes_before(options.marks, {chat, rendered.segments, encoded.ids, render_part},
                                 tokenizer());
  return encoded;
}

absl::StatusOr<PromptEncoder::Rendered> PromptEncoder::render(const Conversation& conversation,
                                                              const PromptOptions& options,
                                                              std::size_t max_bytes) const {
  if (parts_.chat_template == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("the model {} has no chat template: chats are not available, completions are",
                    parts_.model_name));
  }
  Rendered rendered;
  std::vector<TextSegment>& segments = rendered.segments;
  TESSERA_ASSIGN_OR_RETURN(segments, render_segments(conversation, options.add_generation_prompt));
  TESSERA_RETURN_IF_ERROR(check_bytes("messages", bytes_of(segments), max_bytes, parts_.context));
  rendered.open_thought = ends_in_thought(segments);
  if (rendered.open_thought && options.close_thought) {
    segments.push_back({"\n</think>\n\n", /*parse_special=*/true});
    rendered.open_thought = false;
  }
  if (!options.answer_begin.empty()) {
    segments.push_back({options.answer_begin, /*parse_special=*/true});
  }
  return rendered;
}

// Requires: there is a template.
absl::StatusOr<std::vector<TextSegment>> PromptEncoder::render_segments(
    const Conversation& conversation, bool add_generation_prompt) const {
  ChatTemplate::Variables variables = variables_;
  variables.add_generation_prompt = add_generation_prompt;
  return parts_.chat_template->render(conversation, variables);
}

absl::StatusOr<std::string> PromptEncoder::render(const Prompt& prompt,
                                                  const PromptOptions& options) const {
  TESSERA_ASSIGN_OR_RETURN(
      const Rendered rendered,
      render(std::get<Conversation>(prompt), options, std::numeric_limits<std::size_t>::max()));
  std::string text;
  for (const TextSegment& segment : rendered.segments) {
    text += segment.text;
  }
  return text;
}

absl::StatusOr<std::string> PromptEncoder::detokenize(std::span<const int32_t> ids,
                                                      ByteBudget::Share* room) const {
  TESSERA_ASSIGN_OR_RETURN(ByteBudget::Share taken, text_room_.for_text(ids));
  Detokenizer detokenizer(tokenizer(), {.keep_special = true});
  std::string text;
  for (const int32_t id : ids) {
    text += detokenizer.push(id);
  }
  text += detokenizer.finish();
  if (room != nullptr) {
    *room = std::move(taken);
  }
  return text;
}

}  // namespace tessera
