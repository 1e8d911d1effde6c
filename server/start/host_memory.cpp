#include "server/start/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace tessera {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// Returns: the number behind `name` in a file of lines such as "MemAvailable: 17 kB".
std::optional<int64_t> number_in(const std::filesystem::path& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  while (file >> word) {
    if (word == name && file >> number) {
      return number;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> number_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;  // "max": none
}

// Returns: bytes that one control group leaves, of version 2 or 1.
int64_t free_in_group(const std::filesystem::path& folder) {
  const bool second = std::filesystem::exists(folder / "memory.max");
  const auto limit = number_of(folder / (second ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = number_of(folder / (second ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) {
    return kUnknown;
  }
  const char* names[] = {second ? "inactive_file" : "total_inactive_file",
                         second ? "active_file" : "total_active_file"};
  int64_t files = 0;
  for (const char* name : names) {
    files += number_in(folder / "memory.stat", name).value_or(0);
  }
  return std::max<int64_t>(0, *limit - *used + files);
}

// Returns: the path of the process's control group within the hierarchy that counts memory.
std::string group_of_process(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty() || controllers.find("memory") != std::string::npos) {
      return line.substr(second + 1);
    }
  }
  return "/";
}

}  // namespace

int64_t free_host_memory(const std::filesystem::path& root) {
  const std::optional<int64_t> available = number_in(root / "proc/meminfo", "MemAvailable:");
  int64_t free = available ? *available * 1024 : kUnknown;
  for (const char* hierarchy : {"sys/fs/cgroup", "sys/fs/cgroup/memory"}) {
    const std::filesystem::path top = root / hierarchy;
    // In a container the group's path may not exist, and the top is the container's own group.
    std::filesystem::path group = std::filesystem::path(group_of_process(root)).relative_path();
    free = std::min(free, free_in_group(top));
    for (; !group.empty(); group = group.parent_path()) {
      free = std::min(free, free_in_group(top / group));
    }
  }
  return free;
}

absl::Status check_host_memory(std::string_view what, int64_t bytes, std::string_view advice,
                               int64_t free) {
  if (bytes <= free) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      fmt::format("memory: {} needs {} bytes ({} MiB), and {} bytes ({} MiB) are free: {}", what,
                  bytes, bytes >> 20, free, free >> 20, advice));
}

}  // namespace tessera
