#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

namespace tessera::bench {

// Bytes moved in a nanosecond (GB/s) by all of the device's threads.
struct Bandwidth {
  double read = 0;
  double copy = 0;  // counting what is read and what is written
};

// Where ops run: a backend's tables, the stream to call them with, and what the machine can do.
class Device {
 public:
  // Null when there is no device of this name. threads: 0 takes all.
  static std::unique_ptr<Device> make(std::string_view name, int threads);
  static std::span<const std::string_view> names();

  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual int threads() const = 0;
  virtual Stream stream() const = 0;

  // Instruction sets of this machine, the best first; each has a backend.
  virtual std::vector<std::string_view> isas() const = 0;
  virtual const Backend& backend(std::string_view isa) const = 0;

  // So much memory that going around it meets nothing in a cache: several times the largest cache,
  // and 512 MiB at least.
  virtual int64_t bytes_beyond_caches() const = 0;

  // What memory gives to one who goes around `bytes` of it (or bytes_beyond_caches(), if less).
  // Takes milliseconds and is called again and again, so that it is known at the time that an op is
  // timed.
  virtual Bandwidth measure_bandwidth(int64_t bytes) = 0;
  // Additions and multiplications in a nanosecond (GFLOP/s) by the instruction that kernels for
  // `arithmetic` use; takes about `seconds`.
  virtual double measure_peak(std::string_view isa, WeightFormat arithmetic, double seconds) = 0;
  virtual std::string_view peak_instruction(std::string_view isa,
                                            WeightFormat arithmetic) const = 0;
};

}  // namespace tessera::bench
