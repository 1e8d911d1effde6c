#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// The newest answers of other requests, to draft from: agents repeat keys, calls and phrases from
// one conversation to the next. A sequence drafts from answers under its own salt alone, as it
// finds prefixes in the cache. So nobody's speed tells about the texts of others.
//
// Memory is taken at once, at most 300 KiB. Nothing allocates later.
class RecentAnswers {
 public:
  static constexpr int32_t kAnswers = 64;
  static constexpr int32_t kTokens = 1024;     // first ones of an answer, which are kept
  static constexpr size_t kLongestSalt = 256;  // answers under longer ones are not kept
  static constexpr int32_t kMatch = 4;         // newest tokens that must occur in an answer

  RecentAnswers();

  // Keeps an answer, in the place of the oldest one.
  void add(std::string_view salt, std::span<const int32_t> answer);
  void clear();

  // Writes the tokens behind the last occurrence of the newest tokens, in the newest answer under
  // the salt that has one.
  // tokens: all known tokens of the sequence
  // Returns: number of tokens, at most out.size(); 0 if there is no occurrence.
  int32_t guess(std::string_view salt, std::span<const int32_t> tokens,
                std::span<int32_t> out) const;

 private:
  struct Answer {
    std::string salt;
    std::vector<int32_t> tokens;
  };

  std::vector<Answer> answers_;  // a ring
  size_t next_ = 0;              // place of the next answer
};

}  // namespace tessera
