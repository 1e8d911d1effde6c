#include <chrono>
#include <optional>
#include <random>

#include "bench/device.h"
#include "bench/device_array.h"
#include "kernels/cuda_library.h"

namespace tessera::bench {
namespace {

constexpr int kPasses = 4;  // passes of one measurement; a single one is too short to time

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaLibrary& library)
      : backend_(*library.backend), probe_(*library.probe), stream_(library.stream) {}

  std::string_view name() const override { return "cuda"; }
  std::string describe() const override {
    return probe_.device + ", " + std::to_string(probe_.multiprocessors) + " multiprocessors";
  }
  int threads() const override { return 1; }
  Stream stream() const override { return stream_; }
  void wait() const override { memory().wait(stream_); }
  double sample_nanoseconds() const override { return 1'000'000; }  // wait() takes ten thousand

  std::vector<std::string_view> isas() const override { return {backend_.isa}; }
  const Backend& backend(std::string_view) const override { return backend_; }
  const DeviceMemory& memory() const override { return *backend_.memory; }
  int64_t bytes_beyond_caches() const override {
    return std::max(kFewestBytesBeyondCaches, 3 * probe_.cache_bytes);
  }

  Bandwidth measure_bandwidth(int64_t bytes) override {
    const int64_t set = std::clamp<int64_t>(bytes / 8192 * 8192, 8192, bytes_beyond_caches());
    if (!probed_.has_value() || probed_->size() < set) {
      probed_.reset();
      probed_.emplace(*this, set);
    }
    std::byte* const memory = probed_->as<std::byte>();
    const double reading = time([&] { probe_.read(memory, set, stream_); });
    const double copying = time([&] { probe_.copy(memory + set / 2, memory, set / 2, stream_); });
    return {static_cast<double>(kPasses * set) / reading,
            static_cast<double>(kPasses * set) / copying};
  }

  double measure_peak(std::string_view, WeightFormat arithmetic, double seconds) override {
    const int64_t bytes = probe_.multiply_bytes(arithmetic);
    if (bytes == 0) {
      exit_with_error("the device has no product in " + std::string(tessera::name(arithmetic)));
    }
    if (!factors_.has_value() || factors_->size() < bytes) {
      factors_.reset();
      factors_.emplace(*this, bytes);
      repeat(factors_->as<std::byte>(), bytes, random_factors());
    }
    int64_t flops = 0;
    double min = 0;
    double spent = 0;
    do {
      const double taken =
          time([&] { flops = probe_.multiply(arithmetic, factors_->as<std::byte>(), stream_); });
      min = min == 0 ? taken : std::min(min, taken);
      spent += taken;
    } while (spent < seconds * 1e9);
    return static_cast<double>(kPasses * flops) / min;
  }
  std::string_view peak_instruction(std::string_view, WeightFormat) const override {
    return "cuBLASLt";
  }
  // Rate of the tensor cores, which is the same for f16.
  WeightFormat attention_arithmetic() const override { return WeightFormat::bf16; }

 private:
  template <class Call>
  double time(Call&& call) const {
    wait();
    const auto start = std::chrono::steady_clock::now();
    for (int pass = 0; pass < kPasses; ++pass) {
      call();
    }
    wait();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
        .count();
  }

  // Bytes that form floats of moderate size and both signs, in any width. A GPU multiplies zeros
  // with less power, and so faster.
  static std::vector<std::byte> random_factors() {
    std::mt19937 random(1);
    std::vector<std::byte> bytes(1 << 20);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random() & 0xbfu);
    }
    return bytes;
  }

  const Backend& backend_;
  const DeviceProbe& probe_;
  Stream stream_;
  std::optional<DeviceArray> probed_;
  std::optional<DeviceArray> factors_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device() {
  const CudaLibrary library = open_cuda_library();
  if (library.backend == nullptr) {
    exit_with_error("--device cuda: " + library.error);
  }
  return std::make_unique<CudaDevice>(library);
}

}  // namespace tessera::bench
