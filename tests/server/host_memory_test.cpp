#include "server/start/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A root of a file system with the files that tell about memory.
class HostMemory : public testing::Test {
 protected:
  HostMemory() { write("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 2000 kB\n"); }
  ~HostMemory() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void write_group(const std::string& folder, const std::string& limit, int64_t used) const {
    write(folder + "/memory.max", limit + "\n");
    write(folder + "/memory.current", std::to_string(used) + "\n");
    write(folder + "/memory.stat", "anon 1\ninactive_file 300\nactive_file 200\n");
  }
  int64_t free() const { return free_host_memory(root_); }

 private:
  const std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("host_memory_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

constexpr int64_t kAvailable = 2000 * 1024;

TEST_F(HostMemory, IsWhatTheSystemHasAvailableWithoutGroups) {
  EXPECT_EQ(free(), kAvailable);
}

TEST_F(HostMemory, IsWhatTheGroupOfAContainerLeaves) {
  write("proc/self/cgroup", "0::/\n");
  write_group("sys/fs/cgroup", "10000", 4000);
  EXPECT_EQ(free(), 10000 - 4000 + 500) << "pages of files can be freed";
  write_group("sys/fs/cgroup", "max", 4000);
  EXPECT_EQ(free(), kAvailable);
  write_group("sys/fs/cgroup", "1000", 4000);
  EXPECT_EQ(free(), 0);
}

TEST_F(HostMemory, IsWhatEachGroupAboveTheProcessLeaves) {
  write("proc/self/cgroup", "0::/system.slice/tessera.service\n");
  write_group("sys/fs/cgroup/system.slice/tessera.service", "max", 10);
  write_group("sys/fs/cgroup/system.slice", "7000", 1000);
  EXPECT_EQ(free(), 6500);
  write_group("sys/fs/cgroup/system.slice/tessera.service", "5000", 1000);
  EXPECT_EQ(free(), 4500);
}

TEST_F(HostMemory, IsReadFromGroupsOfVersionOneToo) {
  write("proc/self/cgroup", "5:cpu:/other\n4:memory:/docker/a\n");
  write("sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "9000\n");
  write("sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes", "2000\n");
  write("sys/fs/cgroup/memory/docker/a/memory.stat", "total_inactive_file 100\n");
  EXPECT_EQ(free(), 7100);
}

TEST(HostMemoryCheck, NamesWhatIsNeededAndWhatIsFree) {
  EXPECT_TRUE(check_host_memory("the KV cache", 10, "lower it", 10).ok());
  const absl::Status status = check_host_memory("the KV cache", 3 << 20, "lower it", 1 << 20);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the KV cache needs 3145728 bytes (3 MiB)"),
                    HasSubstr("1048576 bytes (1 MiB) are free: lower it")));
}

}  // namespace
}  // namespace tessera
