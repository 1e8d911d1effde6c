#include "text/added_token.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/split_pattern.h"

namespace tessera {
namespace {

// The search reads at most this far from each position, so it stays linear in the text.
constexpr size_t kMaxContentBytes = 512;

// Returns: the begin of the character that ends at `end`.
size_t character_begin(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && continues_utf8(text[begin])) --begin;
  return begin;
}

bool is_word(std::string_view character) {
  static const absl::StatusOr<SplitPattern> kWord =
      SplitPattern::compile(R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}]+)");
  const std::string probe = "a" + std::string(character);  // one word or two
  std::vector<std::string_view> words;
  kWord->split(probe, words);
  return words.size() == 1;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    const size_t before = character_begin(text, begin);
    if (is_word(text.substr(before, begin - before))) return false;
  }
  return end == text.size() || !is_word(text.substr(end, next_utf8(text.substr(end)).size));
}

size_t space_begin(std::string_view text, size_t floor, size_t at) {
  while (at > floor) {
    const size_t begin = character_begin(text, at);
    const Utf8Step step = next_utf8(text.substr(begin, at - begin));
    if (step.kind != Utf8Step::Kind::valid || !is_unicode_space(step.character)) break;
    at = begin;
  }
  return at;
}

size_t space_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (step.kind != Utf8Step::Kind::valid || !is_unicode_space(step.character)) break;
    at += step.size;
  }
  return at;
}

// The end of a run of adjacent segments that have the same parse_special.
struct Stretch {
  size_t end;
  bool parse_special;
};

std::vector<Stretch> join(std::span<const TextSegment> segments, std::string& text) {
  std::vector<Stretch> stretches;
  for (const TextSegment& segment : segments) {
    text += repair_utf8(segment.text);
    if (!stretches.empty() && stretches.back().parse_special == segment.parse_special) {
      stretches.back().end = text.size();
    } else {
      stretches.push_back({text.size(), segment.parse_special});
    }
  }
  return stretches;
}

}  // namespace

absl::Status AddedTokens::add(AddedToken token) {
  const std::string name = "added token " + std::to_string(token.id) + " \"" + token.content + "\"";
  if (token.content.empty()) {
    return absl::InvalidArgumentError("added token " + std::to_string(token.id) + " is empty");
  }
  if (token.content.size() > kMaxContentBytes) {
    return absl::InvalidArgumentError("added token " + std::to_string(token.id) + " has " +
                                      std::to_string(token.content.size()) + " bytes; at most " +
                                      std::to_string(kMaxContentBytes) + " are supported");
  }
  if (by_content_.count(token.content) != 0) {
    return absl::InvalidArgumentError(name + " is there twice");
  }
  if (const auto other = by_id_.find(token.id); other != by_id_.end()) {
    return absl::InvalidArgumentError(name + " has the id of \"" + tokens_[other->second].content +
                                      "\"");
  }
  trie_.insert(token.content, static_cast<uint32_t>(tokens_.size()));
  by_content_[token.content] = tokens_.size();
  by_id_[token.id] = tokens_.size();
  tokens_.push_back(std::move(token));
  return absl::OkStatus();
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find_id(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

// Special tokens must end at or before `special_end`; 0: none are allowed here.
const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at,
                                          size_t special_end) const {
  const AddedToken* longest = nullptr;
  trie_.match(text, at, [&](uint32_t index, size_t end) {
    const AddedToken& token = tokens_[index];
    const bool allowed = (!token.special || end <= special_end) &&
                         (!token.single_word || stands_alone(text, at, end));
    if (allowed) longest = &token;
  });
  return longest;
}

std::vector<TextChunk> AddedTokens::split(std::span<const TextSegment> segments,
                                          std::string& text) const {
  text.clear();
  const std::vector<Stretch> stretches = join(segments, text);
  const std::string_view whole = text;
  std::vector<TextChunk> chunks;
  const auto put = [&](size_t begin, size_t end, std::optional<int32_t> token) {
    if (begin < end) chunks.push_back({token, whole.substr(begin, end - begin), begin == 0});
  };

  size_t plain_begin = 0;
  size_t at = 0;
  auto stretch = stretches.begin();
  while (at < whole.size()) {
    while (at >= stretch->end) ++stretch;
    const AddedToken* token =
        longest_at(whole, at, stretch->parse_special ? stretch->end : size_t{0});
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t begin = token->lstrip ? space_begin(whole, plain_begin, at) : at;
    at += token->content.size();
    if (token->rstrip) at = space_end(whole, at);
    put(plain_begin, begin, std::nullopt);
    put(begin, at, token->id);
    plain_begin = at;
  }
  put(plain_begin, whole.size(), std::nullopt);
  return chunks;
}

}  // namespace tessera
