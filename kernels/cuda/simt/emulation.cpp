#include <ucontext.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/simt/simt.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace tessera::simt {
namespace emulation {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

// AddressSanitizer wants to know which stack comes next. `fake` keeps what it says of the one that
// is left; null where that one never runs again.
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

struct Fiber {
  ucontext_t context = {};
  std::unique_ptr<std::byte[]> stack;
  Thread thread;
  void* fake_stack = nullptr;
  const Barrier* waits_for = nullptr;  // until its generation is no longer:
  int64_t generation = 0;
  bool done = false;
};

struct Warp {
  Barrier barrier;
  Operands operands[2];  // lanes of one exchange cannot come to the next but one
  const char* instruction = nullptr;
};

// One block at a time: kernels of tests run on one thread.
class Block {
 public:
  void run(const LaunchShape& shape, int32_t x, int32_t y, const std::function<void()>& body);

  const Thread& self() const { return current_->thread; }

  void wait(Barrier& barrier, int32_t parties) {
    if (++barrier.arrived == parties) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    current_->waits_for = &barrier;
    current_->generation = barrier.generation;
    to_scheduler(&current_->fake_stack);
  }
  void wait_for_block() { wait(barrier_, self().shape.threads); }

  const Operands& exchange(const char* instruction, const void* operand, size_t bytes) {
    Warp& warp = warps_[static_cast<size_t>(self().thread / kWarp)];
    TESSERA_CHECK(warp.barrier.arrived == 0 || std::strcmp(warp.instruction, instruction) == 0,
                  "lanes of a warp meet in different instructions");
    warp.instruction = instruction;
    Operands& operands = warp.operands[warp.barrier.generation % 2];
    if (bytes > 0) {
      std::memcpy(operands.of[self().thread % kWarp], operand, bytes);
    }
    wait(warp.barrier, kWarp);
    return operands;
  }

 private:
  static void enter();
  void to_scheduler(void** fake_stack);
  bool resume(Fiber& fiber);

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::byte> shared_;
  Barrier barrier_;
  Fiber* current_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  ucontext_t scheduler_ = {};
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
  self.current_->done = true;
  self.to_scheduler(nullptr);
}

void Block::to_scheduler(void** fake_stack) {
  Fiber& fiber = *current_;
  before_switch(fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  TESSERA_CHECK(swapcontext(&fiber.context, &scheduler_) == 0, "swapcontext");
  after_switch(fiber.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
}

// Runs a fiber until it waits or ends, unless it still waits.
bool Block::resume(Fiber& fiber) {
  if (fiber.done ||
      (fiber.waits_for != nullptr && fiber.waits_for->generation == fiber.generation)) {
    return false;
  }
  fiber.waits_for = nullptr;
  current_ = &fiber;
  before_switch(&scheduler_fake_stack_, fiber.stack.get(), kStackBytes);
  TESSERA_CHECK(swapcontext(&scheduler_, &fiber.context) == 0, "swapcontext");
  after_switch(scheduler_fake_stack_, nullptr, nullptr);
  return true;
}

void Block::run(const LaunchShape& shape, int32_t x, int32_t y, const std::function<void()>& body) {
  const size_t count = static_cast<size_t>(shape.threads);
  if (fibers_.size() < count) {
    fibers_.resize(count);
  }
  warps_.assign(count / kWarp, {});
  barrier_ = {};
  body_ = &body;
  constexpr size_t kAlign = 128;
  shared_.assign(static_cast<size_t>(shape.shared_bytes) + kAlign, std::byte{0xff});
  void* shared = shared_.data();
  size_t space = shared_.size();
  std::align(kAlign, 0, shared, space);
  for (size_t i = 0; i < count; ++i) {
    Fiber& fiber = fibers_[i];
    if (fiber.stack == nullptr) {
      fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    }
    fiber.thread = {static_cast<int32_t>(i), x, y, shape, static_cast<std::byte*>(shared)};
    fiber.waits_for = nullptr;
    fiber.fake_stack = nullptr;
    fiber.done = false;
    TESSERA_CHECK(getcontext(&fiber.context) == 0, "getcontext");
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Block::enter, 0);
  }
  for (size_t left = count; left > 0;) {
    bool moved = false;
    for (size_t i = 0; i < count; ++i) {
      if (resume(fibers_[i])) {
        moved = true;
        left -= fibers_[i].done ? 1 : 0;
      }
    }
    TESSERA_CHECK(moved, "threads wait where others of their block or warp never come");
  }
}

float f16_at(uint32_t word, int32_t element) {
  return to_f32(f16{static_cast<uint16_t>(word >> (16 * element))});
}

struct Factors {
  uint32_t a[4];
  uint32_t b[2];
};

// Calls add(a's word, b's word) for each word of the row of A and the column of B whose product is
// the calling lane's d[i].
template <class Add>
void each_word(const Operands& operands, int32_t i, Add&& add) {
  const int32_t row = lane() / 4 + (i < 2 ? 0 : 8);
  const int32_t column = 2 * (lane() % 4) + i % 2;
  for (int32_t t = 0; t < 4; ++t) {
    const Factors of_row = operands.get<Factors>(4 * (row % 8) + t);
    const Factors of_column = operands.get<Factors>(4 * column + t);
    for (int32_t half = 0; half < 2; ++half) {
      add(of_row.a[2 * half + row / 8], of_column.b[half]);
    }
  }
}

}  // namespace

const Thread& self() {
  return block().self();
}

void wait_for_block() {
  block().wait_for_block();
}

const Operands& exchange(const char* instruction, const void* operand, size_t bytes) {
  return block().exchange(instruction, operand, bytes);
}

void run(const LaunchShape& shape, const std::function<void()>& body) {
  TESSERA_CHECK(shape.threads > 0 && shape.threads % kWarp == 0 && shape.threads <= 1024,
                "a block of other than whole warps");
  TESSERA_CHECK(shape.shared_bytes <= 227 * 1024, "more shared memory than a block can have");
  for (int32_t y = 0; y < shape.grid_y; ++y) {
    for (int32_t x = 0; x < shape.grid_x; ++x) {
      block().run(shape, x, y, body);
    }
  }
}

}  // namespace emulation

using emulation::Factors;

void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const Factors own{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const emulation::Operands& operands = emulation::exchange("mma_f16", &own, sizeof(own));
  for (int32_t i = 0; i < 4; ++i) {
    double sum = double{d[i]};
    emulation::each_word(operands, i, [&](uint32_t of_a, uint32_t of_b) {
      for (int32_t e = 0; e < 2; ++e) {
        sum += double{emulation::f16_at(of_a, e)} * double{emulation::f16_at(of_b, e)};
      }
    });
    d[i] = static_cast<float>(sum);
  }
}

void mma_u8s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const Factors own{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const emulation::Operands& operands = emulation::exchange("mma_u8s8", &own, sizeof(own));
  for (int32_t i = 0; i < 4; ++i) {
    emulation::each_word(operands, i, [&](uint32_t of_a, uint32_t of_b) {
      for (int32_t e = 0; e < 4; ++e) {
        d[i] += static_cast<int32_t>(of_a >> (8 * e) & 0xffu) *
                static_cast<int8_t>(of_b >> (8 * e) & 0xffu);
      }
    });
  }
}

}  // namespace tessera::simt
