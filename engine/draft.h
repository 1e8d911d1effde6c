#pragma once

#include <cstdint>
#include <span>

namespace tessera {

// Tokens of the largest step with drafted ones. Up to there a row costs much less than a step of
// its own, because a step reads all weights anyway (docs/speculation.md).
inline constexpr int32_t kDraftingTokens = 16;

// Most tokens that are drafted for one sequence in one step.
inline constexpr int32_t kMostDrafted = kDraftingTokens - 1;

// Drafts the next tokens of a sequence from its own tokens: those that followed the last earlier
// occurrence of its newest tokens (prompt lookup decoding, Saxena 2023; LLMA, Yang et al. 2023,
// section 3). It costs no model. It helps where an answer repeats its prompt or itself: edited
// files, quoted documents, tables, JSON.
//
// How many it drafts follows the measured acceptance: twice as many after a draft that was accepted
// whole, half as many after one that was not. After a draft that was refused from its first token
// on, only a longer occurrence counts, until one is accepted again.
class Draft {
 public:
  // Writes the drafted tokens to `out`.
  // tokens: all known tokens of the sequence
  // Returns: number of tokens, at most out.size(); 0 if there is no occurrence.
  int32_t guess(std::span<const int32_t> tokens, std::span<int32_t> out) const;

  // Learns from a draft of `drafted` > 0 tokens, of which the first `accepted` were right.
  void learn(int32_t drafted, int32_t accepted);

 private:
  static constexpr int32_t kShortestMatch = 3;  // tokens of an occurrence
  static constexpr int32_t kLongestMatch = 12;

  int32_t length_ = 4;  // tokens of the next draft
  int32_t match_ = kShortestMatch;
};

// How many tokens a second model drafts for a sequence (engine/draft_model.h). Such a draft takes a
// step of that model for each token. So it has the length that promises the most tokens for the
// time, by the share of this sequence's drafted tokens that were chosen.
class DraftLength {
 public:
  // step_cost: a step of the second model, in steps of the first one
  // Returns: tokens to draft, at most kMostOfModel; 0 if the second model gains nothing.
  int32_t choose(float step_cost) const;

  // Learns from a draft of `drafted` > 0 tokens, of which the first `accepted` were right.
  void learn(int32_t drafted, int32_t accepted);
  // Called where choose() returned 0: texts change, so it is tried again after some tokens.
  void rest();

  static constexpr int32_t kMostOfModel = 7;

 private:
  float chosen_share_ = 0.75f;
};

// Shortens the longest drafts until together they have at most `room` tokens.
// Returns: tokens that are left.
int32_t share_rows(int32_t room, std::span<int32_t> drafts);

}  // namespace tessera
