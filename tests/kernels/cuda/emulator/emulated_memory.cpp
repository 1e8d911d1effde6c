#include "tests/kernels/cuda/emulator/emulated_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

#include "base/check.h"
#include "kernels/backend.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"

namespace tessera::simt::emulation {
namespace {

int g_open = 0;

std::map<void*, size_t>& mappings() {
  static std::map<void*, size_t> of;
  return of;
}

void protect_all(int protection) {
  for (const auto& [memory, bytes] : mappings()) {
    TESSERA_CHECK(mprotect(memory, bytes, protection) == 0, "mprotect of emulated memory");
  }
}

void* allocate(int64_t bytes) {
  const size_t mapped = static_cast<size_t>(bytes > 0 ? bytes : 1);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  std::memset(memory, 0xff, mapped);
  mappings()[memory] = mapped;
  protect_all(g_open > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  return memory;
}

// As cudaFree() does, waits for kernels first.
void release(void* memory) {
  finish_queued();
  const auto found = mappings().find(memory);
  TESSERA_CHECK(found != mappings().end(), "memory that the emulated device did not allocate");
  munmap(memory, found->second);
  mappings().erase(found);
}

void copy(void* to, const void* from, int64_t bytes) {
  const DeviceAccess access;
  if (bytes > 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

}  // namespace

DeviceAccess::DeviceAccess() {
  if (g_open++ == 0) {
    protect_all(PROT_READ | PROT_WRITE);
  }
}
DeviceAccess::~DeviceAccess() {
  if (--g_open == 0) {
    protect_all(PROT_NONE);
  }
}

const DeviceMemory kMemory{.allocate = allocate,
                           .free = release,
                           .upload = copy,
                           .download =
                               [](void* to, const void* from, int64_t bytes, Stream stream) {
                                 wait(stream);
                                 copy(to, from, bytes);
                               },
                           .wait = [](Stream stream) { wait(stream); }};

}  // namespace tessera::simt::emulation
