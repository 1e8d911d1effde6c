#include "server/generation/answer_bytes.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr std::size_t kMost = std::size_t{256} << 20;

GenerateRequest with_logprobs(int32_t top) {
  GenerateRequest request;
  request.sampling.top_logprobs = top;
  return request;
}

TEST(AskedTokens, AreTheRestOfTheContextWithoutLogProbabilities) {
  EXPECT_EQ(asked_tokens({}, 1, 131'072, kMost), 131'072);
  EXPECT_EQ(asked_tokens(with_logprobs(20), 1, 100, kMost), 100);
}

TEST(AskedTokens, TakeAnEighthOfTheMostBytesForLogProbabilities) {
  const GenerateRequest request = with_logprobs(20);
  const int32_t tokens = asked_tokens(request, 2, 131'072, kMost);
  EXPECT_LT(tokens, 2048);
  EXPECT_LE(answer_bytes(request, 2, 0, tokens), static_cast<int64_t>(kMost / 8));
  EXPECT_GT(answer_bytes(request, 2, 0, tokens + 1), static_cast<int64_t>(kMost / 8));
}

TEST(AskedTokens, AreNotCutWhereTheClientReadsMeanwhile) {
  GenerateRequest request = with_logprobs(20);
  request.streamed = true;
  EXPECT_EQ(asked_tokens(request, 1, 131'072, kMost), 131'072);
}

TEST(AskedTokens, AreAtLeastThoseThatTheRequestDemands) {
  GenerateRequest request = with_logprobs(20);
  request.sampling.min_tokens = 5000;
  EXPECT_EQ(asked_tokens(request, 1, 131'072, kMost), 5000);
  EXPECT_EQ(asked_tokens(with_logprobs(20), 1, 131'072, 8), 1);
}

TEST(AskedTokens, AreThoseThatTheRequestNames) {
  GenerateRequest request = with_logprobs(20);
  request.max_tokens = 100'000;
  EXPECT_EQ(asked_tokens(request, 1, 131'072, kMost), 100'000) << "refused where it is too much";
}

}  // namespace
}  // namespace tessera
