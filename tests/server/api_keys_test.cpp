#include "server/tenants/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/escaping.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class KeyFile {
 public:
  explicit KeyFile(const std::string& text)
      : path_(std::filesystem::path(testing::TempDir()) / "tessera_api_keys_test.txt") {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string basic(const std::string& pair) {
  return "Basic " + absl::Base64Escape(pair);
}

TEST(ApiKeys, LockNothingWhereThereIsNone) {
  const ApiKeys keys = ApiKeys::load("", "").value();
  EXPECT_FALSE(keys.locked());
  EXPECT_TRUE(keys.open(""));
  EXPECT_TRUE(keys.open("Bearer anything"));
}

TEST(ApiKeys, ComeFromAListAndFromTheLinesOfAFile) {
  const KeyFile file("# for the team\n  three \r\n\nfour#4\n#five\nsix");
  const ApiKeys keys = ApiKeys::load("one, two,", file.path()).value();
  EXPECT_TRUE(keys.locked());
  for (const char* key : {"one", "two", "three", "four#4", "six"}) {
    EXPECT_TRUE(keys.open("Bearer " + std::string(key))) << key;
  }
  for (const char* key : {"", " ", "#five", "five", "one,", "one, two", "thre", "threee", "ONE"}) {
    EXPECT_FALSE(keys.open("Bearer " + std::string(key))) << key;
  }
}

TEST(ApiKeys, AreShownAsABearerOrAsThePasswordWhereThatIsAllowed) {
  const ApiKeys keys({"a:b"});
  EXPECT_TRUE(keys.open("bearer  a:b"));
  EXPECT_FALSE(keys.open("a:b"));
  EXPECT_FALSE(keys.open("Bearer"));
  EXPECT_FALSE(keys.open("Digest a:b"));
  EXPECT_FALSE(keys.open(basic("me:a:b")));
  EXPECT_TRUE(keys.open(basic("me:a:b"), /*basic_too=*/true));
  EXPECT_TRUE(keys.open("BASIC " + absl::Base64Escape(":a:b"), true));
  EXPECT_FALSE(keys.open(basic("a:b"), true)) << "the name is a, the password b";
  EXPECT_FALSE(keys.open(basic("nothing"), true));
  EXPECT_FALSE(keys.open("Basic ???", true));
}

TEST(ApiKeys, NameWhatTheyCannotBeReadFromAndQuoteNoKey) {
  EXPECT_EQ(ApiKeys::load("", "/no/such/file").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ApiKeys::load("", "/no/such/file").status().message()),
              HasSubstr("/no/such/file"));
  EXPECT_EQ(ApiKeys::load("", testing::TempDir()).status().code(), absl::StatusCode::kNotFound)
      << "a folder";
  for (const char* endless : {"/dev/zero", "/dev/stdin", "/dev/tty"}) {
    EXPECT_FALSE(ApiKeys::load("", endless).ok()) << endless;
  }
  const KeyFile long_file(std::string((4 << 20) + 1, '\n'));
  EXPECT_THAT(std::string(ApiKeys::load("", long_file.path()).status().message()),
              AllOf(HasSubstr("more than 4194304 bytes"), HasSubstr(long_file.path().string())));
  const std::filesystem::path fifo = long_file.path().string() + ".fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(ApiKeys::load("", fifo).status().message()),
              HasSubstr("is not a regular file"));
  std::filesystem::remove(fifo);
  const KeyFile empty("# nothing\n");
  EXPECT_THAT(std::string(ApiKeys::load("", empty.path()).status().message()),
              HasSubstr("has no key"));
  EXPECT_THAT(std::string(ApiKeys::load(" , ", "").status().message()), HasSubstr("has no key"));
  for (const char* bad : {"se cret", "secr\xc3\xa9t", "secret\x01"}) {
    const std::string message(ApiKeys::load(bad, "").status().message());
    EXPECT_THAT(message, HasSubstr("visible ASCII"));
    EXPECT_THAT(message, Not(HasSubstr("secr")));
  }
}

}  // namespace
}  // namespace tessera
