#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"

namespace tessera {

std::vector<Device> devices_of_this_machine() {
  static ThreadPool pool(2);
  std::vector<Device> devices;
  for (const CpuIsa isa : isas_of_this_machine()) {
    devices.push_back({std::string(name(isa)), &cpu_backend(isa), pool.stream(), [](Stream) {}});
  }
  return devices;
}

}  // namespace tessera
