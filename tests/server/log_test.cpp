// The log, the access log, and the guard of memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/retry_after.h"
#include "server/access_log.h"
#include "server/memory_guard.h"
#include "server/repeat_filter.h"

namespace tessera {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

TEST(AccessLog, TakesAClientsIdIfLogsAndHeadersCanCarryIt) {
  EXPECT_EQ(request_id_of("build-17/42"), "build-17/42");
  for (const std::string& unusable : {std::string(), std::string("a b"), std::string("a\nb"),
                                      std::string("\xc3\xa4"), std::string(200, 'x')}) {
    const std::string made = request_id_of(unusable);
    EXPECT_THAT(made, MatchesRegex("[0-9a-f]{32}")) << unusable;
    EXPECT_NE(request_id_of(unusable), made) << "each request has its own";
  }
}

void fill(RequestRecord& record) {
  record.id = "abc";
  record.method = "POST";
  record.path = "/v1/completions";
  record.key = "search-prod";
  record.tenant = "search";
  record.prompt_tokens = 12;
  record.cached_tokens = 8;
  record.completion_tokens = 5;
  record.queue_us = 1500;
  record.note_first_token(record.received + std::chrono::milliseconds(20));
  record.note_first_token(record.received + std::chrono::milliseconds(30));  // of another sample
}

TEST(AccessLog, HasIdKeyTokensTimesAndStatus) {
  RequestRecord record;
  fill(record);
  EXPECT_THAT(access_line(record, "200", true),
              AllOf(HasSubstr("POST /v1/completions 200 "),
                    HasSubstr("id=abc key=search-prod tenant=search "
                              "prompt=12 cached=8 completion=5 queue=1.5 ms first=20.0 ms"),
                    Not(HasSubstr("cut"))));
  EXPECT_THAT(access_line(record, "200", false), testing::EndsWith(" cut"));
  RequestRecord short_one;
  short_one.id = "d";
  short_one.method = "GET";
  short_one.path = "/v1/models";
  EXPECT_THAT(access_line(short_one, "401", true),
              AllOf(HasSubstr("GET /v1/models 401 "), Not(HasSubstr("key=")),
                    Not(HasSubstr("prompt=")), Not(HasSubstr("queue="))));
}

TEST(AccessLog, IsAJsonObjectOnALineWhateverAPathHas) {
  RequestRecord record;
  fill(record);
  record.path = "/a\"\n\xff";
  const std::string line = access_json(record, "200", false);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const auto object = nlohmann::json::parse(line);
  EXPECT_EQ(object.at("event"), "request");
  EXPECT_EQ(object.at("id"), "abc");
  EXPECT_EQ(object.at("status"), "200");
  EXPECT_EQ(object.at("key"), "search-prod");
  EXPECT_EQ(object.at("tenant"), "search");
  EXPECT_EQ(object.at("prompt_tokens"), 12);
  EXPECT_EQ(object.at("cached_tokens"), 8);
  EXPECT_EQ(object.at("completion_tokens"), 5);
  EXPECT_EQ(object.at("queue_ms"), 1.5);
  EXPECT_EQ(object.at("first_token_ms"), 20.0);
  EXPECT_EQ(object.at("complete"), false);
}

class Repeats : public testing::Test {
 protected:
  Repeats() { sink_->set_pattern("%v"); }

  void log(int second, spdlog::level::level_enum level, const std::string& text) {
    spdlog::details::log_msg message("name", level, text);
    message.time = spdlog::log_clock::time_point(seconds(second));
    filter_.log(message);
  }
  // Returns: the lines since the last call.
  std::string lines() {
    const std::string text = out_.str();
    out_.str("");
    return text;
  }

  std::ostringstream out_;
  std::shared_ptr<spdlog::sinks::sink> sink_ =
      std::make_shared<spdlog::sinks::ostream_sink_mt>(out_);
  RepeatFilter filter_{sink_, 2, seconds(10)};
};

TEST_F(Repeats, AreLimitedAndCounted) {
  for (int i = 0; i < 50; ++i) {
    log(100, spdlog::level::err, "accept: error " + std::to_string(i));
  }
  EXPECT_EQ(lines(), "accept: error 0\naccept: error 1\n");
  log(100, spdlog::level::err, "another line");
  EXPECT_EQ(lines(), "another line\n") << "lines of other words have limits of their own";
  log(111, spdlog::level::err, "accept: error 77");
  EXPECT_EQ(lines(), "accept: error 77 (and 48 more like this since the last)\n");
  log(111, spdlog::level::err, "accept: error 78");
  log(111, spdlog::level::err, "accept: error 79");
  EXPECT_EQ(lines(), "accept: error 78\n");
}

TEST_F(Repeats, OfLessThanAWarningPass) {
  for (int i = 0; i < 3; ++i) {
    log(100, spdlog::level::info, "reload");
  }
  EXPECT_EQ(lines(), "reload\nreload\nreload\n");
}

// Anonymous memory, which goes back to the system at its end.
class Mapped {
 public:
  explicit Mapped(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(data_, MAP_FAILED);
    std::memset(data_, 1, bytes);
  }
  ~Mapped() { munmap(data_, bytes_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  const std::size_t bytes_;
  void* const data_;
};

TEST(MemoryGuard, RefusesAboveItsLimitUntilMemoryIsFreeAgain) {
  constexpr int64_t kMib = 1 << 20;
  const int64_t before = anonymous_memory();
  MemoryGuard guard(before + 96 * kMib, [] { return false; });
  EXPECT_TRUE(guard.check().ok());
  {
    const Mapped much(128 * kMib);
    EXPECT_GE(anonymous_memory(), before + 120 * kMib);
    guard.look();
    const absl::Status status = guard.check();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("MiB of memory"));
    EXPECT_TRUE(retry_after_of(status).has_value());
  }
  guard.look();
  EXPECT_TRUE(guard.check().ok());
}

TEST(MemoryGuard, WithoutALimitRefusesNothing) {
  const MemoryGuard guard(0, [] { return false; });
  EXPECT_TRUE(guard.check().ok());
  EXPECT_GT(guard.resident(), 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(MemoryGuard, GivesFreeHeapBackWhileTheServerIsIdle) {
  bool idle = false;
  std::atomic<bool> idle_now = false;
  MemoryGuard guard(0, [&] { return idle_now.load(); });
  {
    // Small blocks, and one at the end of the heap that keeps them from being trimmed by free().
    std::vector<std::unique_ptr<char[]>> blocks;
    for (int i = 0; i < 64 << 10; ++i) {
      blocks.push_back(std::make_unique<char[]>(1024));
      blocks.back()[0] = 1;
    }
    auto last = std::make_unique<char[]>(1024);
    std::swap(blocks.front(), last);
    blocks.clear();
    guard.look();
    const int64_t kept = guard.resident();
    EXPECT_EQ(guard.trims(), 0);
    idle = idle_now = true;
    guard.look();
    EXPECT_GE(guard.trims(), 1);
    EXPECT_LT(guard.resident(), kept - (32 << 20));
  }
  EXPECT_TRUE(idle);
}
#endif

}  // namespace
}  // namespace tessera
