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

// Prints why to stderr and ends the program: what a command line can cause in a tool.
[[noreturn]] void give_up(const std::string& why);

// Bytes moved in a nanosecond (GB/s) by all of the device.
struct Bandwidth {
  double read = 0;
  double copy = 0;  // counting what is read and what is written
};

// Where ops run: a backend's tables, the stream to call them with, the memory they work on, and
// what the machine can do.
class Device {
 public:
  // Null when there is no device of this name; gives up, and says what is missing, where this
  // machine has none of that kind. threads: of the CPU; 0 takes all.
  static std::unique_ptr<Device> make(std::string_view name, int threads);
  static std::span<const std::string_view> names();

  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual std::string describe() const = 0;  // "2 threads"
  virtual int threads() const = 0;           // that run ops, or start them
  virtual Stream stream() const = 0;
  // Until all ops that were called are done.
  virtual void wait() const = 0;
  // A sample that takes so long is long beside what reading the clock and waiting take.
  virtual double sample_nanoseconds() const = 0;

  // Instruction sets of this machine, the best first; each has a backend.
  virtual std::vector<std::string_view> isas() const = 0;
  virtual const Backend& backend(std::string_view isa) const = 0;

  // Where the operands of its backends lie. Take it by DeviceArray (bench/device_array.h).
  virtual const DeviceMemory& memory() const = 0;

  // So much memory that going around it meets nothing in a cache: several times the largest cache,
  // and 512 MiB at least.
  virtual int64_t bytes_beyond_caches() const = 0;

  // What memory gives to one who goes around `bytes` of it (or bytes_beyond_caches(), if less).
  // Takes milliseconds and is called again and again, so that it is known at the time that an op is
  // timed.
  virtual Bandwidth measure_bandwidth(int64_t bytes) = 0;
  // Additions and multiplications in a nanosecond (GFLOP/s) by the instruction (or library) that
  // kernels for `arithmetic` use; takes about `seconds`.
  virtual double measure_peak(std::string_view isa, WeightFormat arithmetic, double seconds) = 0;
  virtual std::string_view peak_instruction(std::string_view isa,
                                            WeightFormat arithmetic) const = 0;
  // Which of these attention's products over pages of floats are measured against.
  virtual WeightFormat attention_arithmetic() const = 0;

  // Copies to and from the device's memory. They wait for what ops have begun.
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
  // `bytes` of the device's memory become the pattern, again and again.
  void repeat(std::byte* to, int64_t bytes, std::span<const std::byte> pattern) const;
};

}  // namespace tessera::bench
