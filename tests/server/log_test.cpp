// The log, the access log, and the guard of memory.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/retry_after.h"
#include "server/base/memory_guard.h"
#include "server/telemetry/access_log.h"
#include "server/telemetry/log_stream.h"
#include "server/telemetry/log_text.h"
#include "server/telemetry/repeat_filter.h"
#include "server/telemetry/spans.h"

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

const std::string kTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(AccessLog, TakesATraceContextOfTheFirstVersion) {
  EXPECT_EQ(traceparent_of(kTrace), kTrace);
  for (const std::string& wrong :
       {std::string(), kTrace + "0", "01" + kTrace.substr(2), kTrace.substr(0, 54) + "G",
        std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
        "00-" + std::string(32, '0') + "-00f067aa0ba902b7-01",
        kTrace.substr(0, 36) + std::string(16, '0') + "-01", std::string(55, '\n')}) {
    EXPECT_EQ(traceparent_of(wrong), "") << wrong;
  }
}

TEST(AccessLog, NamesTheTraceAndItsParent) {
  RequestRecord record;
  EXPECT_THAT(access_json(record, "200", true), Not(HasSubstr("trace")));
  record.trace = kTrace;
  const auto object = nlohmann::json::parse(access_json(record, "200", true));
  EXPECT_EQ(object.at("trace_id"), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(object.at("parent_id"), "00f067aa0ba902b7");
  EXPECT_THAT(access_line(record, "200", true),
              HasSubstr(" trace=4bf92f3577b34da6a3ce929d0e0e4736"));
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

TEST(AccessLog, WritesTextsOfAClientAsWordsOfTheLine) {
  RequestRecord record;
  fill(record);
  record.id = "a\\";
  record.path = "/a\n2026-01-01 info GET /admin 200\x1b[2J\xc2\x9b\x7f" + std::string(1, '\0');
  const std::string line = access_line(record, "404", true);
  EXPECT_THAT(line, HasSubstr(R"(POST /a\x0a2026-01-01\x20info\x20GET\x20/admin\x20200\x1b[2J)"
                              R"(\xc2\x9b\x7f\x00 404 )"));
  EXPECT_THAT(line, HasSubstr(R"( id=a\\ )"));
  for (const char c : line) {
    EXPECT_TRUE(c >= ' ' && c < '\x7f') << line;
  }
}

// A terminal takes U+009B as the begin of a command too.
TEST(AccessLog, IsAsciiAsJsonAndInSpans) {
  RequestRecord record;
  fill(record);
  record.path = "/\xc2\x9b\x7f\xe2\x80\xa8";
  record.trace = kTrace;
  for (const std::string& line :
       {access_json(record, "200", true),
        span_line(record, "200", true, std::chrono::system_clock::time_point(seconds(1)))}) {
    for (const char c : line) {
      EXPECT_TRUE(c >= ' ' && c < '\x7f') << line;
    }
  }
}

TEST(LogText, HasEscapesInPlaceOfControlsAndKeepsLetters) {
  EXPECT_EQ(escape_controls("a\nb\x1b[m \x7f\t\xc2\x85\xc3\xa4\xc2"),
            "a\\x0ab\\x1b[m \\x7f\\x09\\xc2\\x85\xc3\xa4\xc2");
  EXPECT_EQ(escape_controls(""), "");
  EXPECT_EQ(log_word("a b\\"), "a\\x20b\\\\");
}

// A pipe that holds one page of memory.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(pipe(ends_), 0);
    EXPECT_EQ(fcntl(ends_[1], F_SETPIPE_SZ, 4096), 4096);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int writer() const { return ends_[1]; }
  // Returns: the bytes that can be read now.
  std::string text() const {
    std::string all;
    std::array<char, 4096> piece{};
    for (ssize_t got = 1; got > 0;) {
      got = ::read(ends_[0], piece.data(), piece.size());
      all.append(piece.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    }
    return all;
  }

 private:
  int ends_[2] = {};
};

TEST(LogStream, DropsAndCountsLinesThatNobodyReads) {
  const Pipe pipe;
  LogStream stream(pipe.writer(), std::chrono::milliseconds(1));
  const std::string line = std::string(999, 'x') + "\n";
  for (int i = 0; i < 10; ++i) {
    stream.write(line);
  }
  EXPECT_EQ(stream.take_dropped(), 0) << "nobody could read the number";
  const std::string first = pipe.text();
  EXPECT_EQ(first.size() % line.size(), 0) << "no line is cut";
  EXPECT_EQ(stream.take_dropped(), static_cast<int64_t>(10 - first.size() / line.size()));
  EXPECT_EQ(stream.take_dropped(), 0);
  stream.write("again\n");
  EXPECT_EQ(pipe.text(), "again\n");
}

TEST(LogStream, EndsALineThatItCouldNotWriteWhole) {
  const Pipe pipe;
  LogStream stream(pipe.writer(), std::chrono::milliseconds(1));
  stream.write(std::string(10'000, 'x') + "\n");
  EXPECT_EQ(pipe.text(), std::string(4096, 'x'));
  stream.write("next\n");
  EXPECT_EQ(pipe.text(), "\nnext\n");
  EXPECT_EQ(stream.take_dropped(), 1);
}

TEST(LogStream, WaitsForItsReaderUntilTheServerEnds) {
  const Pipe pipe;
  LogStream stream(pipe.writer(), std::chrono::milliseconds(1));
  EXPECT_TRUE(stream.wait_for_reader());
  stream.write(std::string(4096, 'x'));
  std::thread ending([&stream] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stream.hurry();
  });
  EXPECT_FALSE(stream.wait_for_reader());
  ending.join();
}

// Returns: the spans of a request that ends now.
nlohmann::json spans_of(const RequestRecord& record, std::string_view status, bool complete) {
  const std::string line =
      span_line(record, status, complete, std::chrono::system_clock::time_point(seconds(1000)));
  EXPECT_THAT(line, testing::StartsWith(R"({"resourceSpans")"));  // by which collectors know it
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  return nlohmann::json::parse(line)["resourceSpans"][0]["scopeSpans"][0]["spans"];
}

int64_t nanoseconds(const nlohmann::json& span, const char* name) {
  return std::stoll(span[name].get<std::string>());
}

TEST(Spans, AreOfRequestsThatTheClientSamples) {
  RequestRecord record;
  EXPECT_TRUE(has_spans(record, Spans::all));
  EXPECT_FALSE(has_spans(record, Spans::sampled));
  for (const auto& [flags, sampled] :
       {std::pair("00", false), {"01", true}, {"02", false}, {"0b", true}, {"fe", false}}) {
    record.trace = kTrace.substr(0, 53) + flags;
    EXPECT_EQ(has_spans(record, Spans::sampled), sampled) << flags;
    EXPECT_EQ(has_spans(record, Spans::all), sampled) << flags << ": the client decides";
    EXPECT_FALSE(has_spans(record, Spans::off));
  }
}

TEST(Spans, CoverTheRequestAndItsParts) {
  RequestRecord record;
  fill(record);
  record.trace = kTrace;
  record.received -= seconds(2);
  record.submitted_us = 500;
  const nlohmann::json spans = spans_of(record, "200", true);
  ASSERT_EQ(spans.size(), 4);
  EXPECT_EQ(spans[0]["name"], "POST /v1/completions");
  EXPECT_EQ(spans[0]["parentSpanId"], "00f067aa0ba902b7");
  EXPECT_EQ(spans[0]["endTimeUnixNano"], "1000000000000");
  EXPECT_FALSE(spans[0].contains("status"));
  const std::string names[] = {"", "queue", "prefill", "decode"};
  const int64_t begin = nanoseconds(spans[0], "startTimeUnixNano");
  const int64_t ends[] = {0, 2'000'000, 20'000'000, 1'000'000'000'000 - begin};
  int64_t previous = 500'000;
  for (int part = 1; part < 4; ++part) {
    EXPECT_EQ(spans[part]["name"], names[part]);
    EXPECT_EQ(spans[part]["parentSpanId"], spans[0]["spanId"]);
    EXPECT_EQ(spans[part]["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    EXPECT_EQ(nanoseconds(spans[part], "startTimeUnixNano") - begin, previous) << names[part];
    EXPECT_EQ(nanoseconds(spans[part], "endTimeUnixNano") - begin, ends[part]) << names[part];
    previous = ends[part];
  }
}

TEST(Spans, EndWithTheRequestHoweverFarItGot) {
  RequestRecord record;
  record.method = "gRPC";
  record.path = "/tessera.v1.Inference/Generate";
  record.received -= seconds(1);
  const nlohmann::json refused = spans_of(record, "UNAVAILABLE", true);
  ASSERT_EQ(refused.size(), 1);
  EXPECT_EQ(refused[0]["name"], "tessera.v1.Inference/Generate");
  EXPECT_FALSE(refused[0].contains("parentSpanId"));
  EXPECT_THAT(refused[0]["traceId"].get<std::string>(), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_EQ(refused[0]["status"]["code"], 2);
  EXPECT_FALSE(spans_of(record, "CANCELLED", false)[0].contains("status")) << "the client's choice";
  record.submitted_us = 10;
  const nlohmann::json waited = spans_of(record, "CANCELLED", false);
  ASSERT_EQ(waited.size(), 2) << "it never left the queue";
  EXPECT_EQ(waited[1]["endTimeUnixNano"], waited[0]["endTimeUnixNano"]);
  record.queue_us = 5'000'000;  // longer than the request: of another sample
  const nlohmann::json late = spans_of(record, "CANCELLED", false);
  ASSERT_EQ(late.size(), 3);
  for (const nlohmann::json& part : late) {
    EXPECT_LE(nanoseconds(part, "startTimeUnixNano"), nanoseconds(part, "endTimeUnixNano"));
    EXPECT_LE(nanoseconds(part, "endTimeUnixNano"), 1000000000000);
  }
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

TEST_F(Repeats, PassBelowAWarning) {
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

TEST(MemoryGuard, ShrinksWhatRequestsLeftBehindUntilRequestsAreTaken) {
  constexpr int64_t kMib = 1 << 20;
  MemoryGuard guard(anonymous_memory() + 96 * kMib, [] { return false; });
  std::list<Mapped> cache;
  int shrinks = 0;
  guard.add({.name = "cache",
             .bytes = [&] { return static_cast<int64_t>(cache.size()) * 32 * kMib; },
             .shrink =
                 [&] {
                   ++shrinks;
                   cache.pop_back();
                 }});
  guard.add({.name = "fixed", .bytes = [] { return int64_t{0}; }, .shrink = nullptr});
  for (int i = 0; i < 5; ++i) {
    cache.emplace_back(32 * kMib);
  }
  EXPECT_EQ(guard.bytes_by_part().front().second, 160 * kMib);
  for (int i = 0; i < 5 && (i == 0 || !guard.check().ok()); ++i) {
    guard.look();
  }
  EXPECT_TRUE(guard.check().ok());
  EXPECT_GE(shrinks, 2);
  EXPECT_LE(shrinks, 4) << "no more than needed";
}

TEST(MemoryGuard, RefusesNothingWithoutALimit) {
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
