// Memory that xgrammar takes while it compiles.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "server/grammar/grammar_compiler.h"
#include "server/grammar/make_spec.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

GrammarVocabulary vocabulary_of_bytes() {
  GrammarVocabulary made;
  for (int byte = 0; byte < 256; ++byte) {
    made.bytes.emplace_back(1, static_cast<char>(byte));
  }
  made.bytes.emplace_back();  // the end of sequence
  made.end_ids = {256};
  return made;
}

class CompileMemory : public testing::Test {
 protected:
  void SetUp() override {
    compiler_ = GrammarCompiler::create(vocabulary_of_bytes(), {.time = milliseconds(5000)});
    if (compiler_ == nullptr) {
      GTEST_SKIP() << "built without xgrammar";
    }
  }

  std::unique_ptr<GrammarCompiler> compiler_;
};

// Bounds of integers become automata: a short schema takes many megabytes while it is compiled.
GrammarSpec many_integers(int count) {
  nlohmann::ordered_json schema = {{"type", "object"}};
  for (int64_t i = 0; i < count; ++i) {
    schema["properties"]["n" + std::to_string(i)] = {{"type", "integer"},
                                                     {"minimum", -123'456'789'012'345},
                                                     {"maximum", 987'654'321'098'765 - i}};
  }
  return *schema_spec(schema, "f");
}

TEST_F(CompileMemory, GivesUpWhatTakesTooMuchMemory) {
  const auto small = GrammarCompiler::create(
      vocabulary_of_bytes(), {.time = milliseconds(5000), .compile_bytes = int64_t{1} << 20});
  const absl::Status status = small->compile(many_integers(100)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes more than 1024 KiB of memory"));
  EXPECT_EQ(small->compiling_bytes(), 0);
  EXPECT_TRUE(small->compile(many_integers(1)).ok());
  EXPECT_TRUE(small->compile({GrammarSpec::Kind::regex, "a"}).ok());
}

TEST_F(CompileMemory, TellsTheMemoryOfACompilationWhileItRuns) {
  std::atomic<bool> ended = false;
  std::thread compiling([&] {
    (void)compiler_->compile(many_integers(60));
    ended = true;
  });
  int64_t most = 0;
  while (!ended) {
    most = std::max(most, compiler_->compiling_bytes());
    std::this_thread::sleep_for(milliseconds(1));
  }
  compiling.join();
  EXPECT_GT(most, 1 << 20);
  EXPECT_LE(most, kCompileBytes);
  EXPECT_EQ(compiler_->compiling_bytes(), 0);
}

// The library's own count misses a fifth here.
TEST_F(CompileMemory, CountsAllBytesOfACompiledGrammar) {
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  if (in_use() == 0) {
    GTEST_SKIP() << "a sanitizer's allocator";
  }
  const auto spec = schema_text_spec(R"({"const":")" + std::string(30'000, 'a') + R"("})", "f");
  ASSERT_TRUE(spec.ok()) << spec.status();
  (void)compiler_->compile(*spec);  // and fills caches of the library
  const int64_t before = in_use();
  const auto compiled = compiler_->compile(*spec);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const auto taken = static_cast<double>(in_use() - before);
  EXPECT_NEAR(static_cast<double>(compiled->bytes), taken, 0.01 * taken);
}

}  // namespace
}  // namespace tessera
