#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>

namespace tessera {

// The system calls of a disk store on its files. Tests replace them by calls that fail, so that a
// full, slow or broken disk is tested without one.
struct DiskCalls {
  ssize_t (*write)(int file, const void* bytes, size_t count, off_t offset) = pwrite;
  ssize_t (*read)(int file, void* bytes, size_t count, off_t offset) = pread;
  int (*sync)(int file) = fdatasync;
};

}  // namespace tessera
