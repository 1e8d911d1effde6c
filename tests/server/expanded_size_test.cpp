#include "server/grammar/expanded_size.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

struct Sized {
  const char* pattern;
  int64_t expanded;
  int depth = 0;
};

TEST(PatternSize, CountsTheRepeatsOfARegexWrittenOut) {
  for (const Sized& one : {
           Sized{"", 0},
           Sized{"abc", 3},
           Sized{"a{3}", 3},
           Sized{"a{2,5}b", 6},
           Sized{"a{2,}", 2},
           Sized{"(a|b){2,6}", 12, 1},
           Sized{"(a|b)c{3}", 5, 1},
           Sized{"((ab){3}c){10}", 70, 2},
           Sized{"[a-z{9}()]{4}", 4},
           Sized{R"(\({2}\d*x+y?)", 5},
           Sized{"a{x}", 1},
           Sized{"a{", 1},
           Sized{"))a((", 1, 2},
       }) {
    const PatternSize size = pattern_size(one.pattern, Notation::regex);
    EXPECT_EQ(size.expanded, one.expanded) << one.pattern;
    EXPECT_EQ(size.depth, one.depth) << one.pattern;
  }
}

TEST(PatternSize, CountsATextAndANameOfAGrammarOnce) {
  for (const Sized& one : {
           Sized{R"(root ::= "hello world" | other)", 3},
           Sized{R"(root ::= ("ab" c){5} # a{1000})", 11, 1},
           Sized{R"(root ::= "a{1000}\"(" [b"(]{3})", 5},
           Sized{"a-b_c.d", 1},
       }) {
    const PatternSize size = pattern_size(one.pattern, Notation::gbnf);
    EXPECT_EQ(size.expanded, one.expanded) << one.pattern;
    EXPECT_EQ(size.depth, one.depth) << one.pattern;
  }
}

TEST(PatternSize, DoesNotOverflow) {
  std::string pattern = "a";
  for (int i = 0; i < 100; ++i) {
    pattern = "(" + pattern + "){999999999999999999999}";
  }
  const PatternSize size = pattern_size(pattern, Notation::regex);
  EXPECT_GT(size.expanded, kMaxExpandedSize);
  EXPECT_EQ(size.depth, 100);
}

}  // namespace
}  // namespace tessera
