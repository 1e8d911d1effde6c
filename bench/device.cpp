#include "bench/device.h"

#include <cstdio>
#include <cstdlib>

#include "bench/device_array.h"

namespace tessera::bench {
namespace {

constexpr std::string_view kNames[] = {"cpu", "cuda"};
constexpr int64_t kUploadBytes = int64_t{4} << 20;  // bytes of one upload

}  // namespace

void exit_with_error(const std::string& why) {
  std::fprintf(stderr, "tessera-bench: %s\n", why.c_str());
  std::exit(1);
}

std::unique_ptr<Device> Device::make(std::string_view name, int threads) {
  return name == "cpu" ? make_cpu_device(threads) : name == "cuda" ? make_cuda_device() : nullptr;
}

std::span<const std::string_view> Device::names() {
  return kNames;
}

void Device::repeat(std::byte* to, int64_t bytes, std::span<const std::byte> pattern) const {
  wait();
  std::vector<std::byte> piece;
  while (std::ssize(piece) < std::min(bytes, kUploadBytes)) {
    piece.insert(piece.end(), pattern.begin(), pattern.end());
  }
  for (int64_t at = 0; at < bytes; at += std::ssize(piece)) {
    memory().upload(to + at, piece.data(), std::min<int64_t>(std::ssize(piece), bytes - at));
  }
}

DeviceArray::DeviceArray(const Device& device, int64_t bytes)
    : size_(static_cast<size_t>(bytes)), bytes_(allocate(device.memory(), bytes)) {
  if (bytes_ == nullptr) {
    exit_with_error("the device has not enough memory; ask for less with --memory");
  }
  device.repeat(bytes_.get(), bytes, std::vector<std::byte>(4096));  // zero and resident
}

}  // namespace tessera::bench
