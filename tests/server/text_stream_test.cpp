#include "server/generation/text_stream.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tessera {
namespace {

// Token i is pieces[i], any bytes.
class PieceTable final : public Tokenizer {
 public:
  explicit PieceTable(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}

  std::vector<int32_t> encode(std::span<const TextSegment>, bool) const override { return {}; }
  std::string token_bytes(int32_t id, bool) const override {
    return pieces_.at(static_cast<std::size_t>(id));
  }
  bool strips_leading_space() const override { return false; }
  bool is_special(int32_t) const override { return false; }
  std::optional<int32_t> special_id(std::string_view) const override { return std::nullopt; }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> eos_id() const override { return std::nullopt; }

 private:
  std::vector<std::string> pieces_;
};

struct Streamed {
  std::string text;
  bool stopped = false;
  std::vector<std::string> parts;  // text released by each token
};

Streamed stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stop) {
  const PieceTable tokenizer(pieces);
  TextStream text(tokenizer, {}, stop);
  Streamed result;
  for (int32_t i = 0; i < tokenizer.vocab_size(); ++i) {
    result.parts.push_back(text.push(i));
    result.text += result.parts.back();
  }
  result.text += text.finish();
  result.stopped = text.stopped();
  return result;
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> result;
  for (const char c : text) {
    result.emplace_back(1, c);
  }
  return result;
}

TEST(TextStream, PassesTextThroughWithoutStops) {
  const Streamed result = stream({"Hel", "lo", " world"}, {});
  EXPECT_EQ(result.text, "Hello world");
  EXPECT_EQ(result.parts, (std::vector<std::string>{"Hel", "lo", " world"}));
  EXPECT_FALSE(result.stopped);
}

TEST(TextStream, FindsAStopAcrossTokenBordersAndHoldsBackItsBeginning) {
  const Streamed result = stream({"one ST", "OP", " two"}, {"STOP"});
  EXPECT_EQ(result.parts, (std::vector<std::string>{"one ", "", ""}));
  EXPECT_TRUE(result.stopped);
}

TEST(TextStream, ReleasesTextThatDidNotBecomeAStop) {
  const Streamed result = stream({"a S", "TO", "RM"}, {"STOP"});
  EXPECT_EQ(result.parts, (std::vector<std::string>{"a ", "", "STORM"}));
  EXPECT_FALSE(result.stopped);
}

TEST(TextStream, FinishReleasesHeldText) {
  EXPECT_EQ(stream({"end ST"}, {"STOP"}).text, "end ST");
}

TEST(TextStream, KeepsNothingAfterAStop) {
  const PieceTable tokenizer({"x", "STOP", "y"});
  TextStream text(tokenizer, {}, {"STOP"});
  EXPECT_EQ(text.push(0), "x");
  EXPECT_EQ(text.push(1), "");
  EXPECT_EQ(text.push(2), "");
  EXPECT_EQ(text.finish(), "");
}

TEST(TextStream, FindsAStopThatBeginsWithinAFalseBeginning) {
  EXPECT_EQ(stream({"a", "a", "a", "b", "c"}, {"aab"}).text, "a");
  EXPECT_EQ(stream({"\n", "\n", "\n", "end"}, {"\n\nend"}).text, "\n");
}

TEST(TextStream, TheStopThatIsCompleteFirstWins) {
  EXPECT_EQ(stream({"xabcy"}, {"abc", "b"}).text, "xa");
  EXPECT_EQ(stream({"x", "a", "b", "c"}, {"abc", "b"}).text, "xa");
  EXPECT_EQ(stream({"xabcy"}, {"bc", "abc"}).text, "x") << "of two that end together, the longer";
}

TEST(TextStream, AnEmptyStopNeverStops) {
  const Streamed result = stream({"abc"}, {""});
  EXPECT_EQ(result.text, "abc");
  EXPECT_FALSE(result.stopped);
}

TEST(TextStream, NeverSplitsACharacter) {
  const std::string euro = "\xe2\x82\xac";
  const Streamed result = stream(characters("5" + euro + "!"), {});
  EXPECT_EQ(result.parts, (std::vector<std::string>{"5", "", "", euro, "!"}));
  EXPECT_EQ(stream(characters(euro + "STOP"), {euro + "S"}).text, "");
  EXPECT_EQ(stream(characters("a" + euro), {"\xe2\x82\xa9"}).text, "a" + euro)
      << "stops that share their first bytes with other characters";
}

TEST(TextStream, AnUnfinishedCharacterIsReplacedAtTheEnd) {
  EXPECT_EQ(stream({"a\xe2\x82"}, {"STOP"}).text, "a\xef\xbf\xbd");
}

TEST(TextStream, DoesNotDependOnWhereTokensBeginAndEnd) {
  const std::string text = "say \xe2\x82\xac: aabab\nUser:\n\nUser: done";
  const std::vector<std::vector<std::string>> stops = {
      {"aabab"}, {"\nUser:", "\n\nUser"}, {"abab\n", "ab\nU", "bab"}, {"done", "one"}, {"absent"}};
  for (const auto& stop : stops) {
    const Streamed expected = stream(characters(text), stop);
    for (std::size_t i = 1; i < text.size(); ++i) {  // every split into two and three pieces
      for (std::size_t j = i; j < text.size(); ++j) {
        std::vector<std::string> pieces{text.substr(0, i), text.substr(i, j - i), text.substr(j)};
        const Streamed result = stream(pieces, stop);
        ASSERT_EQ(result.text, expected.text) << "split at " << i << " and " << j;
        ASSERT_EQ(result.stopped, expected.stopped);
      }
    }
  }
}

TEST(TextStream, AgreesWithSearchingCharacterByCharacter) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto word = [&](std::size_t max) {
      std::string s;
      for (std::size_t n = 1 + random() % max; n > 0; --n) {
        s += static_cast<char>('a' + random() % 2);
      }
      return s;
    };
    const std::string text = word(24);
    const std::vector<std::string> stop{word(4), word(6), word(6)};
    // text up to the first complete stop string, without the longest one that ends there
    std::string expected;
    std::size_t longest = 0;
    for (const char c : text) {
      expected += c;
      for (const std::string& s : stop) {
        longest = expected.ends_with(s) ? std::max(longest, s.size()) : longest;
      }
      if (longest > 0) {
        break;
      }
    }
    expected.resize(expected.size() - longest);
    std::vector<std::string> pieces;
    for (std::size_t i = 0; i < text.size();) {
      pieces.push_back(text.substr(i, 1 + random() % 5));
      i += pieces.back().size();
    }
    const Streamed result = stream(pieces, stop);
    ASSERT_EQ(result.text, expected);
    ASSERT_EQ(result.stopped, longest > 0);
  }
}

}  // namespace
}  // namespace tessera
