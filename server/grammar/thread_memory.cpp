#include "server/grammar/thread_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/check.h"

namespace tessera {
namespace {

// Plain words, so that a thread's first allocation initializes nothing.
thread_local bool counted = false;
thread_local int64_t bytes_now = 0;
thread_local int64_t bytes_most = 0;

int64_t bytes_of(void* memory) {
  constexpr std::size_t kHeader = sizeof(std::size_t);  // of malloc, before each piece
  return static_cast<int64_t>(malloc_usable_size(memory) + kHeader);
}

void* allocate(std::size_t bytes) noexcept {
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (counted && memory != nullptr) {
    bytes_now += bytes_of(memory);
    bytes_most = std::max(bytes_most, bytes_now);
  }
  return memory;
}

void release(void* memory) noexcept {
  if (counted && memory != nullptr) {
    bytes_now -= bytes_of(memory);
  }
  std::free(memory);
}

}  // namespace

ThreadMemory::ThreadMemory() {
  TESSERA_CHECK(!counted, "the thread's memory is counted already");
  bytes_now = bytes_most = 0;
  counted = true;
}

ThreadMemory::~ThreadMemory() {
  counted = false;
}

int64_t ThreadMemory::bytes() {
  return counted ? bytes_now : 0;
}

int64_t ThreadMemory::most_bytes() {
  return counted ? bytes_most : 0;
}

}  // namespace tessera

// The standard allows a program to replace these. Forms that are not here, as those of arrays, call
// them; those with an alignment are left alone.
void* operator new(std::size_t bytes) {
  while (true) {
    if (void* const memory = tessera::allocate(bytes)) {
      return memory;
    }
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) {
      throw std::bad_alloc();
    }
    handler();
  }
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return tessera::allocate(bytes);
}
void operator delete(void* memory) noexcept {
  tessera::release(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  tessera::release(memory);
}
