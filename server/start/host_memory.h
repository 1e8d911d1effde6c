#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Returns: bytes of memory that this process may still take: those that the system has free or can
// free (MemAvailable), and no more than its control groups leave it. Pages of files that a group
// counts are free. A large number where the system does not say. `root`: of the file system.
int64_t free_host_memory(const std::filesystem::path& root = "/");

// Checks that so much memory is free. The kernel would kill the process without a message.
// `what`: its use, such as "the KV cache"; `advice`: the settings that lower it.
// Errors: ResourceExhausted, with both numbers.
absl::Status check_host_memory(std::string_view what, int64_t bytes, std::string_view advice,
                               int64_t free);

}  // namespace tessera
