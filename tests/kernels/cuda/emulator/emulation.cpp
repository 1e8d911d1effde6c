#include "tests/kernels/cuda/emulator/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
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
struct Block;
struct Fiber {
  ucontext_t context = {};
  jmp_buf place = {};
  bool entered = false;
  std::unique_ptr<std::byte[]> stack;
  Thread thread;
  Block* block = nullptr;
  void* fake_stack = nullptr;
  // The fiber waits until the barrier's generation differs from `generation`; null: not waiting.
  const Barrier* waits_for = nullptr;
  int64_t generation = 0;
  bool done = false;
  std::deque<CopyAhead> copies;
  int64_t copy_groups = 0;  // that have ended
};

struct Warp {
  Barrier barrier;
  int64_t epoch = 0;     // times that its lanes met in sync_warp()
  Operands operands[2];  // no lane can be two exchanges ahead of another
  const char* instruction = nullptr;
};

// State of a block. Fibers and memory serve later blocks.
struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<std::byte> memory;  // shared
  std::vector<int32_t> order;     // of warps
  int32_t number = 0;             // place in the grid
  int32_t left = 0;               // threads that have not ended
  Barrier barrier;
  int64_t accessed = -1;  // barriers of the cluster that preceded another block's last in_block()
};

// Runs one cluster at a time, because kernels of tests run on one thread.
class Cluster {
 public:
  // (x, y): the first block's place.
  void run(const LaunchShape& shape, int32_t x, int32_t y, const std::function<void()>& body);

  const Thread& self() const { return current_->thread; }
  Fiber& current() { return *current_; }
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
    wait(current_->block->barrier, self().shape.threads, [] {});
  }
  void wait_for_cluster() {
    wait(barrier_, self().shape.threads * self().shape.cluster, [] {});
  }

  const Operands& exchange(const char* instruction, const void* operand, size_t bytes,
                           void (*combine)(Operands&)) {
    Warp& warp = current_->block->warps[static_cast<size_t>(self().thread / kWarp)];
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

  void* in_block(const void* place, int32_t rank);

 private:
  static void enter();
  void to_scheduler(void** fake_stack);
  void prepare(Block& block, const Thread& first);
  void prepare(Fiber& fiber, const Thread& thread);
  bool resume(Fiber& fiber);
  bool resume_warp(Block& block, int32_t warp);
  bool resume_block(Block& block);

  std::array<Block, kMaxCluster> blocks_;
  std::array<std::span<const std::byte>, kMaxCluster> shared_;  // memory of the running blocks
  std::vector<int32_t> order_;                                  // of blocks
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

Cluster& cluster() {
  static Cluster instance;
  return instance;
}

void Cluster::enter() {
  Cluster& self = cluster();
  after_switch(nullptr, &self.scheduler_stack_, &self.scheduler_stack_bytes_);
  (*self.body_)();
  TESSERA_CHECK(self.current_->copies.empty(), "a thread ended before its copies");
  self.current_->done = true;
  self.to_scheduler(nullptr);
}

void Cluster::to_scheduler(void** fake_stack) {
  Fiber& fiber = *current_;
  before_switch(fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  if (_setjmp(fiber.place) == 0) {
    _longjmp(scheduler_, 1);
  }
  after_switch(fiber.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
}

// Runs a fiber until it waits or ends. Returns: false if it has ended or still waits.
bool Cluster::resume(Fiber& fiber) {
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

const Place* Cluster::place() {
  if (current_ == nullptr || !observed_) {
    return nullptr;
  }
  const Block& block = *current_->block;
  place_.block = block.number;
  place_.thread = current_->thread.thread;
  place_.cluster_epoch = barrier_.generation;
  place_.block_epoch = block.barrier.generation;
  place_.warp_epoch = block.warps[static_cast<size_t>(place_.thread / kWarp)].epoch;
  place_.stack = {current_->stack.get(), kStackBytes};
  return &place_;
}

void* Cluster::in_block(const void* place, int32_t rank) {
  const std::byte* own = self().shared;
  const int64_t offset = static_cast<const std::byte*>(place) - own;
  TESSERA_CHECK(offset >= 0 && offset < self().shape.shared_bytes,
                "a place outside the block's shared memory");
  TESSERA_CHECK(rank >= 0 && rank < self().shape.cluster, "a block outside the cluster");
  Block& there = blocks_[static_cast<size_t>(rank)];
  if (rank != self().cluster_rank) {
    TESSERA_CHECK(barrier_.generation > 0, "shared memory of a block that may not have begun");
    there.accessed = barrier_.generation;
  }
  return there.fibers[0].thread.shared + offset;
}

// Resumes each lane once. Returns: whether one of them moved.
bool Cluster::resume_warp(Block& block, int32_t warp) {
  std::array<int32_t, kWarp> lanes;
  Schedule::of_process().arrange(lanes);
  bool moved = false;
  for (const int32_t lane : lanes) {
    Fiber& fiber = block.fibers[static_cast<size_t>(warp * kWarp + lane)];
    if (resume(fiber)) {
      moved = true;
      block.left -= fiber.done ? 1 : 0;
    }
  }
  return moved;
}

// Gives each warp a turn. Returns: whether one of them moved.
bool Cluster::resume_block(Block& block) {
  if (block.left == 0) {
    return false;
  }
  Schedule& schedule = Schedule::of_process();
  bool moved = false;
  schedule.arrange(block.order);
  for (const int32_t warp : block.order) {
    while (resume_warp(block, warp)) {
      moved = true;
      if (!schedule.goes_on()) {
        break;
      }
    }
  }
  return moved;
}

void Cluster::prepare(Fiber& fiber, const Thread& thread) {
  if (fiber.stack == nullptr) {
    fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  }
  fiber.thread = thread;
  fiber.waits_for = nullptr;
  fiber.fake_stack = nullptr;
  fiber.entered = false;
  fiber.done = false;
  fiber.copy_groups = 0;
  TESSERA_CHECK(getcontext(&fiber.context) == 0, "getcontext");
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &Cluster::enter, 0);
}

// `first`: the block's thread 0, but for its shared memory.
void Cluster::prepare(Block& block, const Thread& first) {
  const LaunchShape& shape = first.shape;
  const size_t count = static_cast<size_t>(shape.threads);
  if (block.fibers.size() < count) {
    block.fibers.resize(count);
  }
  block.warps.assign(count / kWarp, {});
  block.order.resize(count / kWarp);
  block.number = first.block_y * shape.grid_x + first.block_x;
  block.left = shape.threads;
  block.barrier = {};
  block.accessed = -1;
  constexpr size_t kAlign = 128;
  block.memory.assign(static_cast<size_t>(shape.shared_bytes) + kAlign, std::byte{0xff});
  void* shared = block.memory.data();
  size_t space = block.memory.size();
  std::align(kAlign, 0, shared, space);
  Thread thread = first;
  thread.shared = static_cast<std::byte*>(shared);
  for (; thread.thread < shape.threads; ++thread.thread) {
    Fiber& fiber = block.fibers[static_cast<size_t>(thread.thread)];
    fiber.block = &block;
    prepare(fiber, thread);
  }
}

void Cluster::run(const LaunchShape& shape, int32_t x, int32_t y,
                  const std::function<void()>& body) {
  const std::span blocks(blocks_.data(), static_cast<size_t>(shape.cluster));
  for (int32_t rank = 0; rank < shape.cluster; ++rank) {
    Block& block = blocks[static_cast<size_t>(rank)];
    prepare(block, {0, x, y + rank, rank, shape, nullptr});
    shared_[static_cast<size_t>(rank)] = block.memory;
  }
  order_.resize(blocks.size());
  barrier_ = {};
  ++place_.cluster_run;
  place_.shared = std::span(shared_).first(blocks.size());
  body_ = &body;
  const auto goes_on = [&] { return blocks.size() > 1 && Schedule::of_process().goes_on(); };
  const auto runs = [](const Block& block) { return block.left > 0; };
  while (std::ranges::any_of(blocks, runs)) {
    bool moved = false;
    Schedule::of_process().arrange(order_);
    for (const int32_t rank : order_) {
      while (resume_block(blocks[static_cast<size_t>(rank)])) {
        moved = true;
        if (!goes_on()) {
          break;
        }
      }
    }
    TESSERA_CHECK(moved || barrier_.arrived == 0,
                  "threads wait at a barrier of the cluster that others never reach");
    TESSERA_CHECK(moved, "threads wait at a barrier that others never reach");
  }
  for (const Block& block : blocks) {
    TESSERA_CHECK(block.accessed < barrier_.generation,
                  "shared memory of a block that may have ended");
  }
}

}  // namespace

const Thread& self() {
  return cluster().self();
}

void synchronize(BarrierKind kind, const std::source_location& place) {
  switch (barrier_at(place, kind)) {
    case BarrierKind::cluster:
      return cluster().wait_for_cluster();
    case BarrierKind::block:
      return cluster().wait_for_block();
    case BarrierKind::warp:
      cluster().exchange("sync_warp", nullptr, 0, nullptr);
      return;
    case BarrierKind::none:
      return;
  }
}

const Operands& exchange(const char* instruction, const void* operand, size_t bytes,
                         void (*combine)(Operands&)) {
  return cluster().exchange(instruction, operand, bytes, combine);
}

void* place_in_block(void* place, int32_t rank) {
  return cluster().in_block(place, rank);
}

void begin_copy(CopyAhead copy) {
  Fiber& thread = cluster().current();
  copy.group = thread.copy_groups;
  thread.copies.push_back(copy);
}

void end_copy_group() {
  ++cluster().current().copy_groups;
}

bool take_copy(CopyAhead& copy, int64_t later) {
  Fiber& thread = cluster().current();
  if (thread.copies.empty() || thread.copies.front().group >= thread.copy_groups - later) {
    return false;
  }
  copy = thread.copies.front();
  thread.copies.pop_front();
  return true;
}

const Place* current_place() {
  return cluster().place();
}

AtomicAccess::AtomicAccess(const void* address, size_t bytes) {
  if (note_atomic != nullptr) {
    note_atomic(address, bytes);
  }
  cluster().observe(false);
}

AtomicAccess::~AtomicAccess() {
  cluster().observe(true);
}

void check_shape(const LaunchShape& shape) {
  TESSERA_CHECK(shape.threads > 0 && shape.threads % kWarp == 0 && shape.threads <= 1024,
                "a block needs whole warps, at most 32");
  TESSERA_CHECK(shape.grid_x >= 0 && shape.grid_y >= 0 && shape.grid_y <= kMaxGridY,
                "a grid with more blocks than a launch can have");
  TESSERA_CHECK(shape.cluster > 0 && shape.cluster <= kMaxCluster,
                "a cluster with more blocks than every GPU can launch");
  TESSERA_CHECK(shape.grid_y % shape.cluster == 0, "a grid that is no multiple of its clusters");
  TESSERA_CHECK(shape.shared_bytes >= 0 && shape.shared_bytes <= kMaxSharedBytes,
                "more shared memory than a block can have");
}

void run(const LaunchShape& shape, const std::function<void()>& body) {
  const DeviceAccess access;
  std::vector<int32_t> clusters(
      static_cast<size_t>(int64_t{shape.grid_x} * shape.grid_y / shape.cluster));
  Schedule::of_process().arrange(clusters);
  cluster().begin_launch();
  for (const int32_t at : clusters) {
    cluster().run(shape, at % shape.grid_x, at / shape.grid_x * shape.cluster, body);
  }
}

}  // namespace emulation

}  // namespace tessera::simt
