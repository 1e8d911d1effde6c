#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "base/check.h"
#include "bench/device.h"
#include "bench/device_array.h"
#include "bench/roofline.h"

namespace tessera::bench {
namespace {

constexpr int64_t kProbeBytes = int64_t{64} << 20;  // bytes of one pass, about two milliseconds

// Returns: bytes of the largest cache that the system reports for CPU 0.
int64_t largest_cache() {
  int64_t largest = 0;
  for (int index = 0;; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    int64_t kib = 0;  // "32768K"
    if (!(file >> kib)) {
      return largest;
    }
    largest = std::max(largest, kib << 10);
  }
}

// Uses huge pages if there are any. Small pages are a little slower.
void* allocate_pages(int64_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t size = static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), kHugePage));
  void* memory = std::aligned_alloc(kHugePage, size);
  if (memory != nullptr) {
    madvise(memory, size, MADV_HUGEPAGE);
  }
  return memory;
}

constexpr DeviceMemory kHostMemory{
    .allocate = allocate_pages,
    .free = std::free,
    .upload =
        [](void* to, const void* from, int64_t bytes) {
          std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
        },
    .download =
        [](void* to, const void* from, int64_t bytes, Stream) {
          std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
        },
    .wait = [](Stream) {}};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : pool_(threads) { pool_.pin_caller(); }

  std::string_view name() const override { return "cpu"; }
  std::string describe() const override { return std::to_string(threads()) + " threads"; }
  int threads() const override { return pool_.threads(); }
  Stream stream() const override { return {&pool_}; }
  void wait() const override {}  // an op is done when it returns
  double sample_nanoseconds() const override { return 50'000; }
  const DeviceMemory& memory() const override { return kHostMemory; }

  std::vector<std::string_view> isas() const override {
    std::vector<std::string_view> names;
    for (auto isa = std::rbegin(kCpuIsas); isa != std::rend(kCpuIsas); ++isa) {
      if (cpu_supports(*isa)) {
        names.push_back(tessera::name(*isa));
      }
    }
    return names;
  }
  const Backend& backend(std::string_view isa) const override { return cpu_backend(isa_of(isa)); }
  int64_t bytes_beyond_caches() const override {
    return std::max(kFewestBytesBeyondCaches, 3 * largest_cache());
  }

  Bandwidth measure_bandwidth(int64_t bytes) override;
  double measure_peak(std::string_view isa, WeightFormat arithmetic, double seconds) override {
    const PeakLoop peak = peak_loop(isa_of(isa), arithmetic);
    double min = time_peak(pool_, peak);
    for (double spent = min; spent < seconds * 1e9;) {
      const double taken = time_peak(pool_, peak);
      min = std::min(min, taken);
      spent += taken;
    }
    return static_cast<double>(peak.flops * pool_.threads()) / min;
  }
  std::string_view peak_instruction(std::string_view isa, WeightFormat arithmetic) const override {
    return peak_loop(isa_of(isa), arithmetic).instruction;
  }
  WeightFormat attention_arithmetic() const override { return WeightFormat::f32; }

 private:
  static double rate(int64_t bytes, double nanoseconds) {
    return static_cast<double>(bytes) / nanoseconds;
  }

  // Returns: the next `count` bytes of the first `set` bytes, in cyclic order.
  std::span<std::byte> take(int64_t set, int64_t count) {
    const int64_t at = probe_at_ + count <= set ? probe_at_ : 0;
    probe_at_ = at + count;
    return probed_->span().subspan(static_cast<size_t>(at), static_cast<size_t>(count));
  }

  // Copies the first half to the second. Returns: nanoseconds.
  double copy(std::span<std::byte> both, Stores stores) {
    const size_t half = both.size() / 2;
    return time_copy(pool_, both.first(half), both.last(half), stores);
  }

  static CpuIsa isa_of(std::string_view isa) {
    for (const CpuIsa known : kCpuIsas) {
      if (isa == tessera::name(known)) {
        return known;
      }
    }
    TESSERA_CHECK(false, "an instruction set that isas() does not name");
    return CpuIsa::scalar;
  }

  mutable ThreadPool pool_;
  std::optional<DeviceArray> probed_;
  int64_t probe_at_ = 0;
};

Bandwidth CpuDevice::measure_bandwidth(int64_t bytes) {
  const int64_t set = std::clamp<int64_t>(bytes / 8192 * 8192, 8192, bytes_beyond_caches());
  if (!probed_.has_value() || probed_->size() < set) {
    probed_.reset();
    probed_.emplace(*this, set);
  }
  const int64_t piece = std::min(set, kProbeBytes);
  // A small set is passed over until the cache level that fits holds it.
  Bandwidth best;
  for (int64_t passed = 0; passed < kProbeBytes; passed += piece) {
    best.read = std::max(best.read, rate(piece, time_read(pool_, take(set, piece))));
    best.copy = std::max(best.copy, rate(piece, copy(take(set, piece), Stores::streaming)));
    // Beyond the caches, plain stores would be counted before they reach memory.
    if (piece == set) {
      best.copy = std::max(best.copy, rate(piece, copy(take(set, piece), Stores::plain)));
    }
  }
  return best;
}

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace tessera::bench
