// The KV cache of a device that takes all free memory (--kv-memory 0).

#include "engine/device_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kv/kv_shape.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/recording.h"

namespace tessera {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(DeviceBudget, LeavesRoomForSamplerRecordingsAndReserve) {
  const DeviceMemoryUse use{.free = 60 * kGiB, .total = 80 * kGiB};
  const StartMemory start{.sampling = 1 << 20, .recordings = 49, .launches = 488};
  const int64_t expected =
      60 * kGiB - (1 << 20) - 49 * 488 * kRecordedLaunchBytes - 80 * kGiB / kReservedShare;
  EXPECT_EQ(free_kv_bytes(use, start).value(), expected);
}

TEST(DeviceBudget, NamesTheNumbersWhereNothingIsLeft) {
  const absl::StatusOr<int64_t> bytes =
      free_kv_bytes({.free = kGiB, .total = 80 * kGiB}, StartMemory{.sampling = 7});
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(bytes.status().message()),
              testing::AllOf(testing::HasSubstr("1073741824 of 85899345920 bytes are free"),
                             testing::HasSubstr("sampler takes 7")));
}

// An engine of a small model on a device: the fewer recordings, the more pages.
class DeviceBudgetOfEngine : public testing::Test {
 protected:
  DeviceBudgetOfEngine() {
    model_.vocab = 100;
    model_.layers = 32;
    model_.heads = 8;
    model_.kv_heads = 2;
    model_.head_dim = 64;
    options_.max_sequences = 64;
    options_.context = 4096;
    device_.record = [](const RecordArgs&, Stream) { return std::unique_ptr<Recording>(); };
  }
  int64_t bytes() { return free_kv_bytes(use_, options_, model_, device_, pool_.stream()).value(); }

  const DeviceMemoryUse use_{.free = 60 * kGiB, .total = 80 * kGiB};
  ModelConfig model_;
  EngineOptions options_;
  Backend device_ = cpu_backend(best_cpu_isa());
  ThreadPool pool_{1};
};

TEST_F(DeviceBudgetOfEngine, CountsTheRecordingsOfItsLimits) {
  const int64_t of_many = bytes();  // 7 numbers of sequences, 2 contexts
  options_.max_sequences = 32;      // 6
  EXPECT_EQ(bytes() - of_many, 2 * (12 * 32 + 8) * kRecordedLaunchBytes);
  device_.record = nullptr;
  EXPECT_EQ(bytes() - of_many, 14 * (12 * 32 + 8) * kRecordedLaunchBytes);
}

TEST_F(DeviceBudgetOfEngine, FitsWhatACacheOfThatSizeTakes) {
  KvCacheOptions cache = kv_cache_options(options_, model_, device_);
  cache.bytes = bytes();
  const KvArenaShape shape = shape_of(cache).value();
  EXPECT_LE(shape.total_bytes(), bytes());
  EXPECT_GT(shape.total_bytes(), bytes() - 2 * shape.page_bytes * shape.layers * shape.kv_heads);
}

}  // namespace
}  // namespace tessera
