#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/anthropic/messages_request.h"
#include "server/openai/request.h"
#include "server/responses/responses_request.h"

namespace tessera {
namespace {

// Text of `bytes` bytes: as many pieces as fit, made of their number.
std::string repeated_pieces(size_t bytes, const std::function<std::string(size_t)>& piece) {
  std::string text;
  text.reserve(bytes);
  for (size_t i = 0; text.size() + 100 < bytes; ++i) {
    text += (i == 0 ? "" : ",") + piece(i);
  }
  return text;
}

std::string same_pieces(const std::string& piece) {
  constexpr size_t kBody = 8U << 20U;
  return repeated_pieces(kBody, [&](size_t) { return piece; });
}

std::string numbered_keys(size_t bytes = 8U << 20U) {
  return repeated_pieces(bytes, [](size_t i) { return "\"" + std::to_string(i) + "\":{}"; });
}

// The largest body that a server takes by default, in the shapes that take a parser longest.
TEST(ParseBody, RefusesHostileBodiesWithinASecondOfCpuTime) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kSeconds = 10;
#else
  constexpr double kSeconds = 1;
#endif
  const std::vector<std::pair<std::string, std::string>> bodies = {
      {"numbers in an enum", R"({"prompt":"a","guided_json":{"enum":[)" + same_pieces("0") + "]}}"},
      {"objects in an enum",
       R"({"prompt":"a","guided_json":{"enum":[)" + same_pieces("{}") + "]}}"},
      {"few objects after many numbers", R"({"prompt":"a","guided_json":{"enum":[)" +
                                             same_pieces("0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,{}") +
                                             "]}}"},
      {"properties", R"({"prompt":"a","guided_json":{"properties":{)" + numbered_keys() + "}}}"},
      {"keys of a field that is not known", R"({"prompt":"a","x":{)" + numbered_keys() + "}}"},
      {"keys of the body", R"({"prompt":"a",)" + numbered_keys() + "}"},
      {"lists", R"({"prompt":"a","x":[)" + same_pieces("[[[]]]") + "]}"},
      {"tools", R"({"messages":[],"input":"a","tools":[)" + same_pieces("{}") + "]}"},
      {"messages", R"({"messages":[)" + same_pieces(R"({"role":"user","content":""})") + "]}"},
      {"results of functions",
       R"({"x":1,"messages":[)" +
           repeated_pieces(2'600'000,
                           [](size_t) { return R"({"role":"function","content":""})"; }) +
           "]}"},
      {"keys beside functions", R"({"x":1,"functions":[],"y":{)" + numbered_keys(1'500'000) + "}}"},
      {"keys of a call of a function",
       R"({"x":1,"messages":[{"role":"assistant","function_call":{)" + numbered_keys(1'500'000) +
           "}}]}"},
      {"items", R"({"input":[)" + same_pieces(R"({"role":"user","content":""})") + "]}"},
      {"a pattern",
       R"({"prompt":"a","guided_json":{"type":"string","pattern":")" + same_pieces("a") + R"("}})"},
      {"choices", R"({"prompt":"a","guided_choice":[)" + same_pieces("\"abcdefgh\"") + "]}"},
      {"an open bracket", R"({"prompt":"a","x":)" + std::string(4U << 20U, '[')},
  };
  for (const auto& [name, body] : bodies) {
    const std::clock_t begin = std::clock();
    EXPECT_FALSE(parse_completion_request(body).ok()) << name;
    const double completion = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_FALSE(parse_chat_request(body).ok()) << name;
    const double chat = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC - completion;
    EXPECT_LT(completion, kSeconds) << name;
    EXPECT_LT(chat, kSeconds) << name;
    const std::clock_t others = std::clock();
    EXPECT_FALSE(parse_messages_request(body).ok()) << name;
    EXPECT_FALSE(parse_responses_request(body).ok()) << name;
    EXPECT_LT(static_cast<double>(std::clock() - others) / CLOCKS_PER_SEC, 2 * kSeconds) << name;
  }
}

}  // namespace
}  // namespace tessera
