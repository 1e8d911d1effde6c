#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"

namespace tessera {

std::vector<Device> devices_of_this_machine() {
  static ThreadPool pool(2);
  std::vector<Device> devices;
  for (const CpuIsa isa : isas_of_this_machine()) {
    devices.push_back(
        {.name = std::string(name(isa)), .backend = &cpu_backend(isa), .stream = pool.stream()});
  }
  return devices;
}
std::vector<Device> sampling_devices() {
  return devices_of_this_machine();
}

}  // namespace tessera
