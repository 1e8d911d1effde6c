#include "tests/kernels/cuda/emulator/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/cuda/simt/simt.h"
#include "tests/kernels/cuda/emulator/emulated_memory.h"
#include "tests/kernels/cuda/emulator/schedule.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace tessera::simt {
namespace emulation {

// Defined where a program is linked with races.cpp.
[[gnu::weak]] void note_atomic(const void* address, size_t bytes);

namespace {

constexpr size_t kStackBytes = 256 * 1024;

// AddressSanitizer must be informed of the next stack. `fake` saves its data on the stack that is
// left; null if that stack never runs again.
void before_switch([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack,
                   [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
}
void after_switch([[maybe_unused]] void* fake, [[maybe_unused]] const void** left,
                  [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, left, bytes);
#endif
}

struct Barrier {
  int32_t arrived = 0;
  int64_t generation = 0;
};

// setcontext() enters each context once. After that fibers switch by long jumps, because
// swapcontext() makes a system call for signal masks each time.
struct Fiber {
  ucontext_t context = {};
  jmp_buf place = {};
  bool entered = false;
  std::unique_ptr<std::byte[]> stack;
  Thread thread;
  void* fake_stack = nullptr;
  // The fiber waits until the barrier's generation differs from `generation`; null: not waiting.
  const Barrier* waits_for = nullptr;
  int64_t generation = 0;
  bool done = false;
  std::deque<CopyAhead> copies;
};

struct Warp {
  Barrier barrier;
  int64_t epoch = 0;     // times that its lanes met in sync_warp()
  Operands operands[2];  // no lane can be two exchanges ahead of another
  const char* instruction = nullptr;
};

// Runs one block at a time, because kernels of tests run on one thread.
class Block {
 public:
  void run(const LaunchShape& shape, int32_t x, int32_t y, const std::function<void()>& body);

  const Thread& self() const { return current_->thread; }
  std::deque<CopyAhead>& copies() { return current_->copies; }
  const Place* place();
  void begin_launch() { ++place_.launch; }
  // While false, place() is null.
  void observe(bool on) { observed_ = on; }

  template <class AtLast>
  void wait(Barrier& barrier, int32_t parties, AtLast&& at_last) {
    if (++barrier.arrived == parties) {
      at_last();
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    current_->waits_for = &barrier;
    current_->generation = barrier.generation;
    to_scheduler(&current_->fake_stack);
  }
  void wait_for_block() {
    wait(barrier_, self().shape.threads, [] {});
  }

  const Operands& exchange(const char* instruction, const void* operand, size_t bytes,
                           void (*combine)(Operands&)) {
    Warp& warp = warps_[static_cast<size_t>(self().thread / kWarp)];
    TESSERA_CHECK(warp.barrier.arrived == 0 || std::strcmp(warp.instruction, instruction) == 0,
                  "lanes of a warp execute different instructions");
    warp.instruction = instruction;
    Operands& operands = warp.operands[warp.barrier.generation % 2];
    if (bytes > 0) {
      std::memcpy(operands.of[self().thread % kWarp], operand, bytes);
    }
    wait(warp.barrier, kWarp, [&] {
      warp.epoch += bytes == 0 ? 1 : 0;  // only sync_warp() orders accesses to memory
      if (combine != nullptr) {
        combine(operands);
      }
    });
    return operands;
  }

 private:
  static void enter();
  void to_scheduler(void** fake_stack);
  void prepare(Fiber& fiber, const Thread& thread);
  bool resume(Fiber& fiber);
  bool resume_warp(int32_t warp);

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::byte> shared_;
  std::vector<int32_t> order_;  // of warps
  int32_t left_ = 0;            // threads that have not ended
  Barrier barrier_;
  Fiber* current_ = nullptr;  // null while the scheduler runs
  Place place_;
  bool observed_ = true;
  const std::function<void()>* body_ = nullptr;
  jmp_buf scheduler_ = {};
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

Block& block() {
  static Block instance;
  return instance;
}

void Block::enter() {
  Block& self = block();
  after_switch(nullptr, &self.scheduler_stack_, &self.scheduler_stack_bytes_);
  (*self.body_)();
  TESSERA_CHECK(self.current_->copies.empty(), "a thread ended before its copies");
  self.current_->done = true;
  self.to_scheduler(nullptr);
}

void Block::to_scheduler(void** fake_stack) {
  Fiber& fiber = *current_;
  before_switch(fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  if (_setjmp(fiber.place) == 0) {
    _longjmp(scheduler_, 1);
  }
  after_switch(fiber.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
}

// Runs a fiber until it waits or ends. Returns: false if it has ended or still waits.
bool Block::resume(Fiber& fiber) {
  if (fiber.done ||
      (fiber.waits_for != nullptr && fiber.waits_for->generation == fiber.generation)) {
    return false;
  }
  fiber.waits_for = nullptr;
  current_ = &fiber;
  before_switch(&scheduler_fake_stack_, fiber.stack.get(), kStackBytes);
  if (_setjmp(scheduler_) == 0) {
    if (fiber.entered) {
      _longjmp(fiber.place, 1);
    }
    fiber.entered = true;
    setcontext(&fiber.context);
  }
  after_switch(scheduler_fake_stack_, nullptr, nullptr);
  current_ = nullptr;
  return true;
}

const Place* Block::place() {
  if (current_ == nullptr || !observed_) {
    return nullptr;
  }
  place_.thread = current_->thread.thread;
  place_.block_epoch = barrier_.generation;
  place_.warp_epoch = warps_[static_cast<size_t>(place_.thread / kWarp)].epoch;
  place_.stack = {current_->stack.get(), kStackBytes};
  return &place_;
}

// Resumes each lane once. Returns: whether one of them moved.
bool Block::resume_warp(int32_t warp) {
  std::array<int32_t, kWarp> lanes;
  Schedule::of_process().arrange(lanes);
  bool moved = false;
  for (const int32_t lane : lanes) {
    Fiber& fiber = fibers_[static_cast<size_t>(warp * kWarp + lane)];
    if (resume(fiber)) {
      moved = true;
      left_ -= fiber.done ? 1 : 0;
    }
  }
  return moved;
}

void Block::prepare(Fiber& fiber, const Thread& thread) {
  if (fiber.stack == nullptr) {
    fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  }
  fiber.thread = thread;
  fiber.waits_for = nullptr;
  fiber.fake_stack = nullptr;
  fiber.entered = false;
  fiber.done = false;
  TESSERA_CHECK(getcontext(&fiber.context) == 0, "getcontext");
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &Block::enter, 0);
}

void Block::run(const LaunchShape& shape, int32_t x, int32_t y, const std::function<void()>& body) {
  const size_t count = static_cast<size_t>(shape.threads);
  if (fibers_.size() < count) {
    fibers_.resize(count);
  }
  warps_.assign(count / kWarp, {});
  order_.resize(count / kWarp);
  place_.block = y * shape.grid_x + x;
  ++place_.block_run;
  barrier_ = {};
  body_ = &body;
  constexpr size_t kAlign = 128;
  shared_.assign(static_cast<size_t>(shape.shared_bytes) + kAlign, std::byte{0xff});
  void* shared = shared_.data();
  size_t space = shared_.size();
  std::align(kAlign, 0, shared, space);
  place_.shared = shared_;
  for (size_t i = 0; i < count; ++i) {
    prepare(fibers_[i], {static_cast<int32_t>(i), x, y, shape, static_cast<std::byte*>(shared)});
  }
  Schedule& schedule = Schedule::of_process();
  for (left_ = shape.threads; left_ > 0;) {
    bool moved = false;
    schedule.arrange(order_);
    for (const int32_t warp : order_) {
      while (resume_warp(warp)) {
        moved = true;
        if (!schedule.goes_on()) {
          break;
        }
      }
    }
    TESSERA_CHECK(moved, "threads wait at a barrier that others never reach");
  }
}

// Operands of a lane for a product, and its part of the result.
template <class Sum>
struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
  Sum d[4];
};

// Computes the product of a warp. Each word holds `kElements` elements of A or B along the sum;
// of_a(word, e) and of_b(word, e) return element e. Sums in Wide, and rounds once.
template <class Sum, class Wide, int kElements, class OfA, class OfB>
void multiply(Operands& operands, OfA&& of_a, OfB&& of_b) {
  constexpr int kDepth = 8 * kElements;
  Wide a[16][kDepth];
  Wide b[8][kDepth];
  for (int32_t at = 0; at < kWarp; ++at) {
    const auto lane = operands.get<Fragments<Sum>>(at);
    for (int32_t e = 0; e < kElements; ++e) {
      const int32_t k = at % 4 * kElements + e;
      for (int32_t half = 0; half < 2; ++half) {
        a[at / 4][k + half * kDepth / 2] = of_a(lane.a[2 * half], e);
        a[at / 4 + 8][k + half * kDepth / 2] = of_a(lane.a[2 * half + 1], e);
        b[at / 4][k + half * kDepth / 2] = of_b(lane.b[half], e);
      }
    }
  }
  for (int32_t at = 0; at < kWarp; ++at) {
    auto lane = operands.get<Fragments<Sum>>(at);
    for (int32_t i = 0; i < 4; ++i) {
      const Wide* row = a[at / 4 + i / 2 * 8];
      const Wide* column = b[2 * (at % 4) + i % 2];
      Wide sum = Wide{lane.d[i]};
      for (int32_t k = 0; k < kDepth; ++k) {
        sum += row[k] * column[k];
      }
      lane.d[i] = static_cast<Sum>(sum);
    }
    operands.put(at, lane);
  }
}

void multiply_f16(Operands& operands) {
  const auto element = [](uint32_t word, int32_t e) {
    return double{to_f32(f16{static_cast<uint16_t>(word >> (16 * e))})};
  };
  multiply<float, double, 2>(operands, element, element);
}

void multiply_bytes(Operands& operands) {
  multiply<int32_t, int32_t, 4>(
      operands,
      [](uint32_t word, int32_t e) { return int32_t{static_cast<uint8_t>(word >> 8 * e)}; },
      [](uint32_t word, int32_t e) { return int32_t{static_cast<int8_t>(word >> 8 * e)}; });
}

template <class Sum>
void product(const char* instruction, Sum (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
             void (*combine)(Operands&)) {
  const Fragments<Sum> own{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
  const auto result =
      exchange(instruction, &own, sizeof(own), combine).template get<Fragments<Sum>>(lane());
  std::copy_n(result.d, 4, d);
}

}  // namespace

const Thread& self() {
  return block().self();
}

void synchronize(BarrierKind kind, const std::source_location& place) {
  switch (barrier_at(place, kind)) {
    case BarrierKind::block:
      return block().wait_for_block();
    case BarrierKind::warp:
      block().exchange("sync_warp", nullptr, 0, nullptr);
      return;
    case BarrierKind::none:
      return;
  }
}

const Operands& exchange(const char* instruction, const void* operand, size_t bytes,
                         void (*combine)(Operands&)) {
  return block().exchange(instruction, operand, bytes, combine);
}

void begin_copy(CopyAhead copy) {
  block().copies().push_back(copy);
}

bool take_copy(CopyAhead& copy) {
  std::deque<CopyAhead>& copies = block().copies();
  if (copies.empty()) {
    return false;
  }
  copy = copies.front();
  copies.pop_front();
  return true;
}

const Place* current_place() {
  return block().place();
}

AtomicAccess::AtomicAccess(const void* address, size_t bytes) {
  if (note_atomic != nullptr) {
    note_atomic(address, bytes);
  }
  block().observe(false);
}

AtomicAccess::~AtomicAccess() {
  block().observe(true);
}

void check_shape(const LaunchShape& shape) {
  TESSERA_CHECK(shape.threads > 0 && shape.threads % kWarp == 0 && shape.threads <= 1024,
                "a block needs whole warps, at most 32");
  TESSERA_CHECK(shape.grid_x >= 0 && shape.grid_y >= 0 && shape.grid_y <= kMaxGridY,
                "a grid with more blocks than a launch can have");
  TESSERA_CHECK(shape.shared_bytes >= 0 && shape.shared_bytes <= kMaxSharedBytes,
                "more shared memory than a block can have");
}

void run(const LaunchShape& shape, const std::function<void()>& body) {
  const DeviceAccess access;
  std::vector<int32_t> blocks(static_cast<size_t>(int64_t{shape.grid_x} * shape.grid_y));
  Schedule::of_process().arrange(blocks);
  block().begin_launch();
  for (const int32_t at : blocks) {
    block().run(shape, at % shape.grid_x, at / shape.grid_x, body);
  }
}

}  // namespace emulation

void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::product("mma_f16", d, a, b, emulation::multiply_f16);
}

void mma_u8s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::product("mma_u8s8", d, a, b, emulation::multiply_bytes);
}

}  // namespace tessera::simt
