#pragma once

#include "bench/device.h"

namespace tessera::bench {

// Zero-initialised device memory for operands of ops. The device outlives it.
// Errors: exits with a message if the device has not enough memory.
class DeviceArray {
 public:
  DeviceArray(const Device& device, int64_t bytes);

  std::span<std::byte> span() const { return {bytes_.get(), size_}; }
  int64_t size() const { return static_cast<int64_t>(size_); }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(bytes_.get());
  }

 private:
  size_t size_;
  DeviceBytes bytes_;
};

// Returns: a copy of `host` in device memory.
template <class T>
DeviceArray on_device(const Device& device, const std::vector<T>& host) {
  DeviceArray array(device, std::ssize(host) * int64_t{sizeof(T)});
  device.upload(array.as<T>(), host);
  return array;
}

}  // namespace tessera::bench
