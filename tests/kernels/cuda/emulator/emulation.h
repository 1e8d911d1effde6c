#pragma once

// Implementation of simt.h on the host, for tests. Launches are queued until the host waits.
// Clusters of blocks run one after the other; the threads of a cluster are fibers that switch when
// they wait for each other. Both go in the order of schedule.h. Integer products are exact;
// products of f16 are summed in double precision and rounded to f32 once, as the hardware's
// documentation allows.

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <source_location>
#include <span>
#include <type_traits>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/matrix/half.h"
#include "tests/kernels/cuda/emulator/barriers.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"

#define TESSERA_KERNEL(...) void
#define TESSERA_DEVICE inline
#define TESSERA_BOTH inline
#define TESSERA_UNROLL
#define TESSERA_UNROLL_BY(count)

namespace tessera::simt {

namespace emulation {

struct Thread {
  int32_t thread = 0;
  int32_t block_x = 0;
  int32_t block_y = 0;
  int32_t cluster_rank = 0;
  LaunchShape shape;
  std::byte* shared = nullptr;
};
const Thread& self();

// A barrier of the cluster, the block or the warp, which stands at `place` in the source.
void synchronize(BarrierKind kind, const std::source_location& place);

// Data that the lanes of a warp exchange in one collective instruction.
struct Operands {
  static constexpr size_t kBytes = 48;
  std::byte of[kWarp][kBytes];

  template <class T>
  T get(int32_t lane) const {
    static_assert(sizeof(T) <= kBytes && std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, of[lane], sizeof(T));
    return value;
  }
  template <class T>
  void put(int32_t lane, const T& value) {
    static_assert(sizeof(T) <= kBytes && std::is_trivially_copyable_v<T>);
    std::memcpy(of[lane], &value, sizeof(T));
  }
};
// Waits until every lane of the warp has delivered its operand, then runs `combine` (null: none)
// once on all operands.
// Returns: operands of all lanes.
// Errors: aborts if lanes execute different instructions.
const Operands& exchange(const char* instruction, const void* operand, size_t bytes,
                         void (*combine)(Operands&) = nullptr);

// Returns: address in the shared memory of another block of the running cluster.
// Requires: `place` is in shared memory of the running thread's block.
// Errors: aborts if no barrier of the cluster came before. The cluster's end aborts if none came
// behind.
void* place_in_block(void* place, int32_t rank);

// Thread, block and kernel that run, for the search for races (races.h).
struct Place {
  int64_t launch = 0;       // number of the kernel
  int64_t cluster_run = 0;  // number of the cluster among those of all kernels
  int32_t block = 0;        // place of the block in the grid
  int32_t thread = 0;
  int64_t cluster_epoch = 0;  // barriers of the cluster that the thread has passed
  int64_t block_epoch = 0;    // those of the block
  int64_t warp_epoch = 0;     // those of its warp
  std::span<const std::span<const std::byte>> shared;  // of the cluster's blocks
  std::span<const std::byte> stack;
};
// Returns: that of the running thread; null on the host.
const Place* current_place();

// A copy of 16 bytes that a thread has begun.
struct CopyAhead {
  void* to;
  const void* from;
  int64_t group = 0;  // number of its group, which begin_copy() sets
};
// Notes a copy of the running thread, and the end of its group.
void begin_copy(CopyAhead copy);
void end_copy_group();
// Takes the oldest copy of the running thread's groups but the last `later`.
// Returns: false if they have none.
bool take_copy(CopyAhead& copy, int64_t later);

// Tells the search for races that the accesses of its lifetime are one atomic access.
class AtomicAccess {
 public:
  AtomicAccess(const void* address, size_t bytes);
  ~AtomicAccess();
  AtomicAccess(const AtomicAccess&) = delete;
  AtomicAccess& operator=(const AtomicAccess&) = delete;
};

// Aborts if a GPU could not launch the shape. A block of compute capability 8.6 has 99 KiB of
// shared memory, the least of those that the backend serves.
inline constexpr int32_t kMaxGridY = 65535;
inline constexpr int32_t kMaxSharedBytes = 99 * 1024;
void check_shape(const LaunchShape& shape);

// Runs `body` for each thread of each block. Shared memory is 0xff at the start of each cluster.
void run(const LaunchShape& shape, const std::function<void()>& body);

}  // namespace emulation

template <class... Parameters, class... Args>
void launch(Stream stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            const Args&... args) {
  emulation::check_shape(shape);
  // Captures by value, as a launch does: the caller's arguments may be gone when the kernel runs.
  emulation::start([=] { emulation::run(shape, [&] { kernel(args...); }); }, stream);
}

template <class T>
const T* mirror(std::span<const T> plan, Stream stream) {
  return static_cast<const T*>(emulation::mirror(plan.data(), plan.size_bytes(), stream));
}

template <class T>
T* collect(std::span<T> numbers, Stream stream) {
  return static_cast<T*>(emulation::collect(numbers.data(), numbers.size_bytes(), stream));
}

inline void download(void* to, const void* from, int64_t bytes, Stream stream) {
  emulation::download(to, from, bytes, stream);
}
inline std::span<std::byte> staging(Stream stream) {
  return emulation::staging(stream);
}
inline void wait(Stream stream) {
  emulation::wait(stream);
}
inline const DeviceLimits& limits(Stream stream) {
  return emulation::limits(stream);
}

template <class T>
T& shared() {
  TESSERA_CHECK(static_cast<int32_t>(sizeof(T)) <= emulation::self().shape.shared_bytes,
                "a kernel uses more shared memory than its launch asked for");
  return *reinterpret_cast<T*>(emulation::self().shared);
}

inline int32_t thread() {
  return emulation::self().thread;
}
inline int32_t threads() {
  return emulation::self().shape.threads;
}
inline int32_t lane() {
  return thread() % kWarp;
}
inline int32_t warp() {
  return thread() / kWarp;
}
inline int32_t block_x() {
  return emulation::self().block_x;
}
inline int32_t block_y() {
  return emulation::self().block_y;
}
inline int32_t grid_x() {
  return emulation::self().shape.grid_x;
}
inline int32_t grid_y() {
  return emulation::self().shape.grid_y;
}

inline void sync_block(const std::source_location& place = std::source_location::current()) {
  emulation::synchronize(emulation::BarrierKind::block, place);
}
inline void sync_warp(const std::source_location& place = std::source_location::current()) {
  emulation::synchronize(emulation::BarrierKind::warp, place);
}

inline int32_t cluster_rank() {
  return emulation::self().cluster_rank;
}
inline int32_t cluster_blocks() {
  return emulation::self().shape.cluster;
}
inline void sync_cluster(const std::source_location& place = std::source_location::current()) {
  emulation::synchronize(emulation::BarrierKind::cluster, place);
}
template <class T>
T* in_block(T* place, int32_t rank) {
  return static_cast<T*>(emulation::place_in_block(place, rank));
}

template <class T>
T shuffle(T value, int32_t from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return emulation::exchange("shuffle", &value, sizeof(T)).template get<T>(from % kWarp);
}
template <class T>
T shuffle_xor(T value, int32_t mask) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return emulation::exchange("shuffle_xor", &value, sizeof(T)).template get<T>(lane() ^ mask);
}

inline uint32_t ballot(bool condition) {
  const uint32_t own = condition ? 1 : 0;
  const emulation::Operands& all = emulation::exchange("ballot", &own, sizeof(own));
  uint32_t word = 0;
  for (int32_t lane = 0; lane < kWarp; ++lane) {
    word |= all.get<uint32_t>(lane) << lane;
  }
  return word;
}
inline int32_t popcount(uint32_t word) {
  return std::popcount(word);
}

template <class T>
T atomic_add(T* address, T value) {
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(address) % sizeof(T) == 0, "an unaligned atomic");
  const emulation::AtomicAccess access(address, sizeof(T));
  const T before = *address;
  *address = static_cast<T>(before + value);
  return before;
}
inline uint16_t subtract_owner(uint16_t* address) {
  const emulation::AtomicAccess access(address, sizeof(uint16_t));
  return (*address)--;
}

inline void check(bool condition) {
  TESSERA_CHECK(condition, "a check in a kernel failed");
}
inline void assume(bool condition) {
  TESSERA_CHECK(condition, "an assumption of a kernel does not hold");
}

inline int32_t not_kept(int32_t x) {
  return x;
}

inline Words load_words(const void* from) {
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(from) % sizeof(Words) == 0, "an unaligned load");
  Words words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}
inline WordPair load_pair(const void* from) {
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(from) % sizeof(WordPair) == 0, "an unaligned load");
  WordPair words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}
inline Words load_global(const void* from) {
  return load_words(from);
}
inline WordPair load_global_pair(const void* from) {
  return load_pair(from);
}
inline uint32_t load_global_word(const void* from) {
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(from) % sizeof(uint32_t) == 0, "an unaligned load");
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}
// The copy is made when the thread waits for it. Until then its destination has other bytes.
inline void copy_ahead(void* to, const void* from) {
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(from) % sizeof(Words) == 0 &&
                    reinterpret_cast<uintptr_t>(to) % sizeof(Words) == 0,
                "an unaligned copy");
  std::memset(to, 0xff, sizeof(Words));
  emulation::begin_copy({to, from});
}
inline void end_copy_group() {
  emulation::end_copy_group();
}
template <int kLater>
void wait_for_copies() {
  for (emulation::CopyAhead copy; emulation::take_copy(copy, kLater);) {
    std::memcpy(copy.to, copy.from, sizeof(Words));
  }
}
inline Words load_transposed(const void* row) {
  struct Row {
    uint16_t of[8];
  };
  const Row own = std::bit_cast<Row>(load_words(row));
  const emulation::Operands& all = emulation::exchange("load_transposed", &own, sizeof(own));
  const auto at = [&](int32_t matrix, int32_t of_row) {
    return uint32_t{all.get<Row>(8 * matrix + of_row).of[lane() / 4]};
  };
  Words words;
  for (int32_t m = 0; m < 4; ++m) {
    const int32_t first = 2 * (lane() % 4);
    words.at[m] = at(m, first) | at(m, first + 1) << 16;
  }
  return words;
}
inline void store_words(void* to, const Words& words) {
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(to) % sizeof(Words) == 0, "an unaligned store");
  std::memcpy(to, &words, sizeof(words));
}
inline float fma(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float exp2(float x) {
  const float result = std::exp2(x);
  return result < FLT_MIN ? 0 : result;
}
inline float reciprocal(float x) {
  return 1 / x;
}
inline float exp(float x) {
  return std::exp(x);
}
inline float erf(float x) {
  return std::erf(x);
}
inline float tanh(float x) {
  return std::tanh(x);
}
inline float log(float x) {
  return std::log(x);
}
inline float max(float a, float b) {
  return std::max(a, b);
}
inline float min(float a, float b) {
  return std::min(a, b);
}
inline float abs(float x) {
  return std::abs(x);
}
inline float sqrt(float x) {
  return std::sqrt(x);
}
inline int32_t round(float x) {
  return static_cast<int32_t>(std::nearbyint(x));
}

inline float as_f32(f16 x) {
  return to_f32(x);
}
inline float as_f32(bf16 x) {
  return to_f32(x);
}
inline f16 as_f16(float x) {
  return to_f16(x);
}
inline uint32_t pack_f16(float low, float high) {
  return to_f16(low).bits | static_cast<uint32_t>(to_f16(high).bits) << 16;
}
inline uint32_t add_f16(uint32_t a, uint32_t b) {
  const auto half = [](uint32_t word) { return to_f32(f16{static_cast<uint16_t>(word)}); };
  return pack_f16(half(a) + half(b), half(a >> 16) + half(b >> 16));
}
inline bool has_bit(uint32_t word, int32_t bit) {
  return (word >> bit & 1) != 0;
}
inline uint32_t merge_low(uint32_t first, uint32_t second) {
  return (first & 0xffffu) | second << 16;
}
inline uint32_t merge_high(uint32_t first, uint32_t second) {
  return first >> 16 | (second & 0xffff0000u);
}
inline uint32_t merge_even(uint32_t first, uint32_t second) {
  const auto bytes = [](uint32_t word) { return (word & 0xffu) | (word >> 8 & 0xff00u); };
  return bytes(first) | bytes(second) << 16;
}
inline uint32_t merge_odd(uint32_t first, uint32_t second) {
  return merge_even(first >> 8, second >> 8);
}

void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void mma_u8s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

}  // namespace tessera::simt
