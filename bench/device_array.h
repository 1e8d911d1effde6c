#pragma once

#include "bench/device.h"

namespace tessera::bench {

// Zeroed memory of the device that ops run on. Gives up when it has not so much.
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

// The same numbers there.
template <class T>
DeviceArray on_device(const Device& device, const std::vector<T>& host) {
  DeviceArray array(device, std::ssize(host) * int64_t{sizeof(T)});
  device.upload(array.as<T>(), host);
  return array;
}

}  // namespace tessera::bench
