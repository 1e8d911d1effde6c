#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// Most bytes of a file with keys or tenants, of a certificate with its chain, of a chat template.
inline constexpr std::size_t kMaxConfigurationBytes = 4 << 20;

// Reads a file that an administrator wrote, and may change while it is read. Never waits: a FIFO
// would keep a start or a SIGHUP until a process writes to it, and a device such as /dev/zero has
// no end.
// Returns: its bytes.
// Errors: NotFound if it cannot be opened or read, or is no regular file. InvalidArgument if it has
// more than `max_bytes`. Messages name the path.
absl::StatusOr<std::string> read_configuration_file(const std::filesystem::path& path,
                                                    std::size_t max_bytes = kMaxConfigurationBytes);

}  // namespace tessera
