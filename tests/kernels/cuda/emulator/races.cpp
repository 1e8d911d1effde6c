#include "tests/kernels/cuda/emulator/races.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace tessera::simt::emulation {
namespace {

const char* name_of(Races::Kind kind) {
  return kind == Races::Kind::read ? "read" : kind == Races::Kind::write ? "write" : "atomic";
}

// Prints the source lines of an instruction by addr2line.
void print_line_of(const void* code) {
  Dl_info info = {};
  if (dladdr(code, &info) == 0) {
    return;
  }
  char offset[32];
  // The call before the return address.
  std::snprintf(offset, sizeof(offset), "%#lx",
                static_cast<unsigned long>(static_cast<const char*>(code) -
                                           static_cast<const char*>(info.dli_fbase) - 1));
  const std::string command = "addr2line -Cfipse " + std::string(info.dli_fname) + " " + offset +
                              " 1>&2 || echo " + offset + " 1>&2";
  std::fflush(stderr);
  if (std::system(command.c_str()) != 0) {
    std::fprintf(stderr, "    %s of %s\n", offset, info.dli_fname);
  }
}

}  // namespace

Races& Races::of_process() {
  static Races& races = [&]() -> Races& {
    std::atexit([] {
      if (of_process().found() > 0) {
        std::fprintf(stderr, "%ld races\n", static_cast<long>(of_process().found()));
        std::fflush(nullptr);
        std::_Exit(66);
      }
    });
    return *new Races;  // instructions run until the process ends
  }();
  return races;
}

int64_t Races::forget() {
  const int64_t count = found();
  reported_.clear();
  return count;
}

Races::Byte& Races::at(uintptr_t address) {
  const uintptr_t page = address / kPage;
  if (last_ == nullptr || page != last_page_) {
    std::unique_ptr<Page>& found = pages_[page];
    if (found == nullptr) {
      if (spare_.empty()) {
        found = std::make_unique<Page>();
      } else {
        found = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    last_page_ = page;
    last_ = found.get();
  }
  return last_->bytes[address % kPage];
}

bool Races::ordered(const Access& before, const Access& now) {
  if (before.scope != now.scope) {
    return true;
  }
  if (before.cluster == now.cluster && before.cluster_epoch < now.cluster_epoch) {
    return true;
  }
  if (before.block != now.block) {
    return false;
  }
  return before.thread == now.thread || before.block_epoch < now.block_epoch ||
         (before.thread / kWarp == now.thread / kWarp && before.warp_epoch < now.warp_epoch);
}

void Races::compare(const Access& before, const Access& now, uintptr_t address) {
  if (ordered(before, now) || (before.kind == Kind::atomic && now.kind == Kind::atomic)) {
    return;
  }
  const std::pair pair{before.code, now.code};
  if (std::find(reported_.begin(), reported_.end(), pair) != reported_.end()) {
    return;
  }
  reported_.push_back(pair);
  reports_ = true;
  std::fprintf(stderr, "data race at %p:\n", reinterpret_cast<void*>(address));
  for (const Access& access : {before, now}) {
    std::fprintf(stderr, "  %s by thread %d of block %d\n", name_of(access.kind), access.thread,
                 access.block);
    print_line_of(access.code);
  }
  reports_ = false;
}

void Races::note_byte(const Access& now, uintptr_t address) {
  Byte& byte = at(address);
  compare(byte.write, now, address);
  if (now.kind != Kind::read) {
    for (Access& read : byte.reads) {
      compare(read, now, address);
      read = {};
    }
    byte.write = now;
    return;
  }
  // A read that precedes this one in order is not needed any more. The first of others stays.
  byte.reads[ordered(byte.reads[0], now) ? 0 : 1] = now;
}

void Races::note(const void* address, size_t bytes, Kind kind, const void* code) {
  const Place* place = current_place();
  const auto first = reinterpret_cast<uintptr_t>(address);
  const auto within = [first](std::span<const std::byte> memory) {
    return first - reinterpret_cast<uintptr_t>(memory.data()) < memory.size();
  };
  if (place == nullptr || reports_ || within(place->stack)) {
    return;
  }
  if (place->launch != launch_) {
    launch_ = place->launch;
    for (auto& [page, memory] : pages_) {
      spare_.push_back(std::move(memory));
    }
    pages_.clear();
    last_ = nullptr;
  }
  const bool in_shared = std::any_of(place->shared.begin(), place->shared.end(), within);
  const Access now{in_shared ? -place->cluster_run : place->launch,
                   place->cluster_run,
                   place->cluster_epoch,
                   place->block_epoch,
                   place->warp_epoch,
                   code,
                   place->block,
                   place->thread,
                   kind};
  for (size_t i = 0; i < bytes; ++i) {
    note_byte(now, first + i);
  }
}

}  // namespace tessera::simt::emulation

// The compiler's -fsanitize=thread calls these before each access of the kernels and tests that it
// compiles. They stand in for libtsan, which is not linked: a fiber of libtsan takes a millisecond
// to make, and each thread of each block would need one of its own.
using tessera::simt::emulation::Races;

#define TESSERA_NOTE(name, bytes, kind)                                                       \
  extern "C" void __tsan_##name(void* address) {                                              \
    Races::of_process().note(address, bytes, Races::Kind::kind, __builtin_return_address(0)); \
  }
TESSERA_NOTE(read1, 1, read)
TESSERA_NOTE(read2, 2, read)
TESSERA_NOTE(read4, 4, read)
TESSERA_NOTE(read8, 8, read)
TESSERA_NOTE(read16, 16, read)
TESSERA_NOTE(write1, 1, write)
TESSERA_NOTE(write2, 2, write)
TESSERA_NOTE(write4, 4, write)
TESSERA_NOTE(write8, 8, write)
TESSERA_NOTE(write16, 16, write)
TESSERA_NOTE(unaligned_read2, 2, read)
TESSERA_NOTE(unaligned_read4, 4, read)
TESSERA_NOTE(unaligned_read8, 8, read)
TESSERA_NOTE(unaligned_read16, 16, read)
TESSERA_NOTE(unaligned_write2, 2, write)
TESSERA_NOTE(unaligned_write4, 4, write)
TESSERA_NOTE(unaligned_write8, 8, write)
TESSERA_NOTE(unaligned_write16, 16, write)
TESSERA_NOTE(vptr_read, 8, read)

extern "C" {
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* address, unsigned long bytes) {
  Races::of_process().note(address, bytes, Races::Kind::read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, unsigned long bytes) {
  Races::of_process().note(address, bytes, Races::Kind::write, __builtin_return_address(0));
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// Atomics of the host's code, which runs on one thread here.
char __tsan_atomic8_load(const volatile char* from, int) {
  return *from;
}
int __tsan_atomic32_fetch_add(volatile int* to, int value, int) {
  return __atomic_fetch_add(to, value, __ATOMIC_ACQ_REL);
}
int __tsan_atomic32_fetch_sub(volatile int* to, int value, int) {
  return __atomic_fetch_sub(to, value, __ATOMIC_SEQ_CST);
}
}

namespace tessera::simt::emulation {

void note_atomic(const void* address, size_t bytes) {
  Races::of_process().note(address, bytes, Races::Kind::atomic, __builtin_return_address(0));
}

}  // namespace tessera::simt::emulation
