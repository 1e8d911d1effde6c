#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/draft.h"
#include "engine/token_grammar.h"

namespace tessera {

// The tokens of a sequence: those of its prompt, those generated since, and behind these *known*
// ones perhaps some *drafted* ones. A step may compute drafted tokens together with the last known
// one. Then a token is chosen after each of them, as long as the chosen token is the drafted one.
// So the text is the same as without drafts.
//
// Memory for the longest list is reserved by the constructor.
class SequenceTokens {
 public:
  struct Limits {
    int32_t most = 0;                 // tokens of prompt and completion
    std::span<const int32_t> forced;  // SequenceRequest::forced, which outlives this
    // Null without a grammar, and on ranks other than the leader.
    std::unique_ptr<TokenConstraint> constraint;
  };
  // Requires: the prompt is not empty and has at most `most` tokens.
  SequenceTokens(const std::vector<int32_t>& prompt, Limits limits);

  std::span<const int32_t> known() const { return std::span(tokens_).first(at(known_)); }
  std::span<const int32_t> prompt() const { return known().first(at(prompt_)); }
  std::span<const int32_t> generated() const { return known().subspan(at(prompt_)); }
  std::span<const int32_t> drafted() const { return std::span(tokens_).subspan(at(known_)); }
  std::span<const int32_t> with_drafted() const { return tokens_; }  // known ones first
  int32_t size() const { return known_; }
  int32_t prompt_size() const { return prompt_; }
  // True if it has reached max_tokens, the end of the forced tokens or the context.
  bool full() const { return known_ == limits_.most; }

  // The next token under teacher forcing, which replaces the sampler's choice.
  std::optional<int32_t> forced() const;
  TokenConstraint* constraint() const { return limits_.constraint.get(); }
  // Returns: true if the token after `position` is the next one to choose. False for a position
  // behind a drafted token that was not chosen.
  bool chooses_after(int32_t position) const { return !refused_ && position + 1 == known_; }
  // Appends a chosen token, which may be the first drafted one; else all drafted ones go.
  void append(int32_t token);

  // ---- drafts
  // Drafts at most `most` tokens from its own, in the place of those drafted before. Called before
  // each step.
  void draft(int32_t most);
  // Tokens that it may still get, without the last one, which is chosen and never computed.
  int32_t most_drafted() const { return limits_.most - known_ - 1; }
  // Returns: tokens that a second model should draft, a step of which takes `step_cost` of one of
  // the first model's; often 0. Learns from being asked, so it is called once before a step.
  int32_t wish_for_draft(float step_cost);
  // Takes tokens that a second model has drafted.
  // Requires: at most most_drafted(); it has none yet.
  void take_draft(std::span<const int32_t> drafted);
  // Forgets the drafted tokens of a step, of which the first `accepted` were chosen, and learns
  // from it.
  void settle_draft(int32_t drafted, int32_t accepted);

 private:
  static constexpr size_t at(int32_t place) { return static_cast<size_t>(place); }

  Limits limits_;
  int32_t prompt_;
  int32_t known_;
  std::vector<int32_t> tokens_;
  bool refused_ = false;  // since draft(), a token was chosen that was not the drafted one
  Draft own_draft_;
  DraftLength length_of_model_;
  bool drafted_by_model_ = false;
};

}  // namespace tessera
