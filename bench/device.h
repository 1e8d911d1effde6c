#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"

namespace tessera::bench {

// Prints `why` to stderr and exits with status 1. For errors that a command line can cause.
[[noreturn]] void exit_with_error(const std::string& why);

// Memory bandwidth of the whole device, in bytes per nanosecond (GB/s).
struct Bandwidth {
  double read = 0;
  double copy = 0;  // bytes read plus bytes written
};

// Lower bound of Device::bytes_beyond_caches().
inline constexpr int64_t kFewestBytesBeyondCaches = int64_t{512} << 20;

// A device that ops are timed on: its backends, the stream and the memory of their ops, and the
// rates of its hardware.
class Device {
 public:
  // Returns: null if no device has this name. threads: CPU threads; 0 uses all cores.
  // Errors: exits with a message that names the missing part if this machine has no such device.
  static std::unique_ptr<Device> make(std::string_view name, int threads);
  static std::span<const std::string_view> names();

  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual std::string describe() const = 0;  // "2 threads"
  virtual int threads() const = 0;           // host threads that run or launch ops
  virtual Stream stream() const = 0;
  // Blocks until all called ops are complete.
  virtual void wait() const = 0;
  // Minimum length of a sample, so that the time of clock reads and of wait() is small beside it.
  virtual double sample_nanoseconds() const = 0;

  // Instruction sets of this machine, the best first. Each has a backend.
  virtual std::vector<std::string_view> isas() const = 0;
  virtual const Backend& backend(std::string_view isa) const = 0;

  // Memory for the operands of this device's backends. Allocate it with DeviceArray
  // (bench/device_array.h).
  virtual const DeviceMemory& memory() const = 0;

  // Returns: bytes to cycle over so that no access hits a cache: several times the largest cache,
  // and at least kFewestBytesBeyondCaches.
  virtual int64_t bytes_beyond_caches() const = 0;

  // Measures bandwidth while cycling over `bytes` of memory, or over bytes_beyond_caches() if that
  // is less. Takes milliseconds. It is repeated next to each timed op, because bandwidth changes
  // over time.
  virtual Bandwidth measure_bandwidth(int64_t bytes) = 0;
  // Returns: additions and multiplications per nanosecond (GFLOP/s) by the instruction (or library)
  // that kernels for `arithmetic` use. Takes about `seconds`.
  virtual double measure_peak(std::string_view isa, WeightFormat arithmetic, double seconds) = 0;
  virtual std::string_view peak_instruction(std::string_view isa,
                                            WeightFormat arithmetic) const = 0;
  // Arithmetic whose peak rate is the limit for attention's products over pages of floats.
  virtual WeightFormat attention_arithmetic() const = 0;

  // Copies to and from device memory. Both wait for ops that were already called.
  template <class T>
  void upload(T* to, std::span<const std::type_identity_t<T>> from) const {
    wait();
    memory().upload(to, from.data(), static_cast<int64_t>(from.size_bytes()));
  }
  template <class T>
  std::vector<std::remove_const_t<T>> download(T* from, int64_t count) const {
    std::vector<std::remove_const_t<T>> all(static_cast<size_t>(count));
    memory().download(all.data(), from, count * int64_t{sizeof(T)}, stream());
    return all;
  }
  // Fills `bytes` bytes of device memory with repetitions of the pattern.
  void repeat(std::byte* to, int64_t bytes, std::span<const std::byte> pattern) const;
};

// Returns: a device that runs ops on the CPU cores of this machine. threads: 0 uses all cores.
std::unique_ptr<Device> make_cpu_device(int threads);

// Returns: the GPU that libtessera_cuda.so opens (kernels/cuda_library.h).
// Errors: exits with a message that names the missing part: the library, the driver, a GPU or an
// op.
std::unique_ptr<Device> make_cuda_device();

}  // namespace tessera::bench
