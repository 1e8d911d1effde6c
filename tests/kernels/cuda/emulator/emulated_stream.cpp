#include "tests/kernels/cuda/emulator/emulated_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/kernels/cuda/emulator/emulated_memory.h"

namespace tessera::simt::emulation {
namespace {

struct Collected {
  void* to;
  std::vector<std::byte> numbers;
};

using Kernels = std::vector<std::function<void()>>;

// State of a recording in progress: its plan in host memory, and the list that receives its
// launches. Null list: launches are queued, with a plan of zeroes.
struct Recorded {
  std::span<const std::byte> plan;
  Kernels* noted;
};

constexpr size_t kPlanBytes = size_t{64} << 10;

StreamCounts g_counts;
std::vector<Collected> g_collected;
Kernels g_queued;
// Copies of plans since the last wait, and of the wait before: those are overwritten, but not freed
// yet, so that a late reader finds 0xff.
std::vector<std::vector<std::byte>> g_plans;
std::vector<std::vector<std::byte>> g_used_plans;
const Recorded* g_recorded = nullptr;

// Device memory for the plans of all recordings, one buffer as in CudaStream.
std::byte* recorded_plan() {
  static auto* memory = static_cast<std::byte*>(kMemory.allocate(kPlanBytes));
  return memory;
}

void set_recorded_plan(std::span<const std::byte> plan) {
  const DeviceAccess access;
  std::memset(recorded_plan(), 0xff, kPlanBytes);
  std::memcpy(recorded_plan(), plan.data(), plan.size());
}

class EmulatedRecording final : public Recording {
 public:
  EmulatedRecording(size_t plan_bytes, Kernels kernels)
      : plan_bytes_(plan_bytes), kernels_(std::make_shared<Kernels>(std::move(kernels))) {}

  void start(std::span<const std::byte> plan, Stream) const override {
    TESSERA_CHECK(plan.size() == plan_bytes_, "a recording is started with a plan of another size");
    ++g_counts.recordings;
    g_queued.push_back([kernels = kernels_, copy = std::vector(plan.begin(), plan.end())] {
      set_recorded_plan(copy);
      for (const auto& kernel : *kernels) {
        kernel();
      }
    });
  }

 private:
  const size_t plan_bytes_;
  const std::shared_ptr<const Kernels> kernels_;
};

}  // namespace

StreamCounts counts() {
  return g_counts;
}

const DeviceLimits& limits(Stream) {
  // So few that lists of tests are longer than the warps that run at once.
  static constexpr DeviceLimits kLimits{
      .multiprocessors = 16, .cluster = kMaxCluster, .shared_bytes = 164 * 1024};
  return kLimits;
}

void finish_queued() {
  const Kernels kernels = std::exchange(g_queued, {});
  const DeviceAccess access;
  for (const auto& kernel : kernels) {
    kernel();
  }
}

void start(std::function<void()> kernel, Stream) {
  if (g_recorded != nullptr && g_recorded->noted != nullptr) {
    g_recorded->noted->push_back(std::move(kernel));
    return;
  }
  ++g_counts.launches;
  g_queued.push_back(std::move(kernel));
}

void wait(Stream) {
  TESSERA_CHECK(g_recorded == nullptr, "a recording cannot wait");
  ++g_counts.waits;
  finish_queued();
  for (std::vector<std::byte>& plan : g_plans) {
    std::fill(plan.begin(), plan.end(), std::byte{0xff});
  }
  g_used_plans = std::exchange(g_plans, {});
  for (const Collected& part : g_collected) {
    std::memcpy(part.to, part.numbers.data(), part.numbers.size());
  }
  g_collected.clear();
}

const void* mirror(const void* plan, size_t bytes, Stream) {
  if (bytes == 0) {
    return nullptr;
  }
  const auto* part = static_cast<const std::byte*>(plan);
  if (g_recorded == nullptr) {
    g_plans.emplace_back(part, part + bytes);
    return g_plans.back().data();
  }
  const std::span<const std::byte> whole = g_recorded->plan;
  TESSERA_CHECK(part >= whole.data() && part + bytes <= whole.data() + whole.size(),
                "a recording reads memory outside its plan");
  return recorded_plan() + (part - whole.data());
}

void* collect(void* to, size_t bytes, Stream) {
  if (bytes == 0) {
    return nullptr;
  }
  TESSERA_CHECK(g_recorded == nullptr, "numbers cannot be collected in a recording");
  g_collected.push_back({to, std::vector<std::byte>(bytes)});
  return g_collected.back().numbers.data();
}

void download(void* to, const void* from, int64_t bytes, Stream stream) {
  kMemory.download(to, from, bytes, stream);
}

std::span<std::byte> staging(Stream) {
  alignas(16) static std::byte memory[10000];
  return memory;
}

std::unique_ptr<Recording> record(const RecordArgs& args, Stream) {
  TESSERA_CHECK(g_recorded == nullptr, "a recording within a recording");
  TESSERA_CHECK(args.plan.size() <= kPlanBytes, "a plan larger than its memory");
  finish_queued();
  Kernels kernels;
  set_recorded_plan(std::vector<std::byte>(args.plan.size()));
  for (Kernels* noted : {static_cast<Kernels*>(nullptr), &kernels}) {
    const Recorded recorded{args.plan, noted};
    g_recorded = &recorded;
    args.ops();
    g_recorded = nullptr;
  }
  finish_queued();
  return std::make_unique<EmulatedRecording>(args.plan.size(), std::move(kernels));
}

}  // namespace tessera::simt::emulation

namespace tessera::cuda {

const DeviceMemory& device_memory() {
  return simt::emulation::kMemory;
}

void attach_thread(Stream) {}

std::unique_ptr<Recording> record(const RecordArgs& args, Stream stream) {
  return simt::emulation::record(args, stream);
}

}  // namespace tessera::cuda
