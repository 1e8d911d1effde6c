#include "load/record/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "load/record/record_file.h"

namespace tessera::load {
namespace {

RequestRecord full_record() {
  RequestRecord record;
  record.number = 7;
  record.session = 3;
  record.turn = 1;
  record.workload = "recall";
  record.intended = 1.5;
  record.sent = 1.500125;
  record.texts = {2, 2.25};
  record.end = 2.5;
  record.outcome = {ErrorClass::rejected, 429, "busy \"now\"", 2.0};
  record.usage = ReportedUsage{5, 4, 9, 2, 1000};
  record.counted_tokens = 4;
  record.verdict = Verdict::missed;
  record.why = "w";
  record.answer = "a";
  record.question = "q";
  return record;
}

TEST(Record, ReadsWhatItPrints) {
  const std::string line = print_record(full_record());
  const auto read = parse_record(line);
  ASSERT_TRUE(read);
  EXPECT_EQ(print_record(*read), line);
  EXPECT_EQ(read->outcome.error, ErrorClass::rejected);
  EXPECT_EQ(read->texts, full_record().texts);
  EXPECT_EQ(read->verdict, Verdict::missed);
  EXPECT_FALSE(parse_record("{\"number\": 1}"));
  EXPECT_FALSE(parse_record(line.substr(0, line.size() / 2)));
}

TEST(RecordFile, GoesOnWhereAnInterruptedRunEnded) {
  const std::filesystem::path path = testing::TempDir() + "records.jsonl";
  std::filesystem::remove(path);
  {
    auto file = RecordFile::open(path, "run a", [](const RequestRecord&) { FAIL(); });
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(file->add(full_record()).ok());
  }
  std::ofstream(path, std::ios::app) << "{\"number\": 8, \"sess";  // the process ended here
  int earlier = 0;
  auto file = RecordFile::open(path, "run a", [&](const RequestRecord& record) {
    ++earlier;
    EXPECT_EQ(record.number, 7u);
  });
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(earlier, 1);
  EXPECT_EQ(file->progress().requests, 1u);
  EXPECT_EQ(file->progress().next_number, 8u);
  EXPECT_EQ(file->progress().next_session, 4u);
  EXPECT_EQ(file->progress().seconds, 2.5);
  EXPECT_TRUE(file->add(full_record()).ok());
}

TEST(RecordFile, RefusesTheFileOfAnotherRun) {
  const std::filesystem::path path = testing::TempDir() + "other.jsonl";
  std::ofstream(path) << "{\"run\":\"run b\"}\n";
  const auto ignore = [](const RequestRecord&) {};
  EXPECT_THAT(std::string(RecordFile::open(path, "run a", ignore).status().message()),
              testing::HasSubstr("another run"));
  std::ofstream(path) << "text\n";
  EXPECT_THAT(std::string(RecordFile::open(path, "run a", ignore).status().message()),
              testing::HasSubstr("line 1"));
}

}  // namespace
}  // namespace tessera::load
