#include "text/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "text/byte_level.h"

namespace tessera {
namespace {

using testing::ElementsAre;

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> words_of(const char* pattern, const std::string& text) {
  const auto compiled = SplitPattern::compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  std::vector<std::string_view> words;
  compiled->split(text, words);
  return {words.begin(), words.end()};
}

// Expected words are those of Hugging Face tokenizers (and of Python's regex).
TEST(SplitPattern, CutsAsLlama3Does) {
  const auto cut = [](const std::string& text) { return words_of(kLlama3Pattern, text); };
  EXPECT_THAT(cut("Hello, world!"), ElementsAre("Hello", ",", " world", "!"));
  EXPECT_THAT(cut("I'LL we'Ve it's 'S"),
              ElementsAre("I", "'LL", " we", "'Ve", " it", "'s", " '", "S"));
  EXPECT_THAT(cut("12345678 90"), ElementsAre("123", "456", "78", " ", "90"));
  EXPECT_THAT(cut("  indented\n\n  more \n"),
              ElementsAre(" ", " indented", "\n\n", " ", " more", " \n"));
  EXPECT_THAT(cut("naïve Ünïcode 北京大学"), ElementsAre("naïve", " Ünïcode", " 北京大学"));
  EXPECT_THAT(cut("a\r\n\r\nb"), ElementsAre("a", "\r\n\r\n", "b"));
  EXPECT_THAT(cut("\t\tx  y   "), ElementsAre("\t", "\tx", " ", " y", "   "));
  EXPECT_THAT(cut("e\u0301 \u00a0nb\u3000sp"),
              ElementsAre("e", "\u0301", " ", "\u00a0nb", "\u3000sp"));
  EXPECT_THAT(cut("(foo_bar)->baz;\n"), ElementsAre("(foo", "_bar", ")->", "baz", ";\n"));
  EXPECT_THAT(cut("½ ² ٣٤٥٦"), ElementsAre("½", " ", "²", " ", "٣٤٥", "٦"));
  EXPECT_THAT(cut("😀😁 ok...\n"), ElementsAre("😀😁", " ok", "...\n"));
  EXPECT_THAT(cut("x'\u017f"), ElementsAre("x", "'\u017f"));
  EXPECT_THAT(cut("a\u0085"
                  "b \u200bd"),
              ElementsAre("a",
                          "\u0085"
                          "b",
                          " \u200b", "d"));
  EXPECT_THAT(cut("b \u180e's"), ElementsAre("b", " \u180e'", "s"));
  EXPECT_THAT(cut("\x1c\x1d x"), ElementsAre("\x1c\x1d", " x"));
  EXPECT_THAT(cut(""), ElementsAre());
}

TEST(SplitPattern, CutsAsGpt2Does) {
  EXPECT_THAT(words_of(kGpt2Pattern, "We've  1234 'S\n"),
              ElementsAre("We", "'ve", " ", " 1234", " '", "S", "\n"));
}

TEST(SplitPattern, KeepsWhatLiesBetweenMatches) {
  EXPECT_THAT(words_of("[0-9]", "ab12c"), ElementsAre("ab", "1", "2", "c"));
  EXPECT_THAT(words_of("x*", "äxxb"), ElementsAre("ä", "xx", "b"));
  EXPECT_THAT(words_of("a\\Kb", "ab"), ElementsAre("a", "b"));
}

TEST(SplitPattern, EndsOnAnExpressionThatBacktracksForever) {
  std::string text(60, 'a');
  text += '!';
  std::string joined;
  for (const std::string& word : words_of("(?:a+)+b", text)) joined += word;
  EXPECT_EQ(joined, text);
}

int64_t thread_microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

// An expression after another one splits each of its words: each digit of a text full of them.
TEST(SplitPattern, SplitsManyShortTextsAsFastAsALongOne) {
  const auto compiled = SplitPattern::compile(kGpt2Pattern);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  constexpr int kTexts = 20'000;
  std::string text;
  for (int i = 0; i < kTexts; ++i) text += i % 2 == 0 ? "7" : "a";
  std::vector<std::string_view> words;
  words.reserve(2 * kTexts);
  const int64_t start = thread_microseconds();
  compiled->split(text, words);
  const int64_t long_one = thread_microseconds() - start;
  for (int i = 0; i < kTexts; ++i) compiled->split(std::string_view(text).substr(i, 1), words);
  const int64_t short_ones = thread_microseconds() - start - long_one;
  EXPECT_EQ(words.size(), 2 * size_t{kTexts});
  EXPECT_LT(short_ones, 10 * long_one + 10'000) << "microseconds; one text takes " << long_one;
}

TEST(SplitPattern, NamesThePlaceOfAnError) {
  const auto broken = SplitPattern::compile("a[b");
  ASSERT_FALSE(broken.ok());
  EXPECT_THAT(std::string(broken.status().message()), testing::HasSubstr("at byte 3"));
}

}  // namespace
}  // namespace tessera
