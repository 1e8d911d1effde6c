#include "tests/kernels/cuda/stand_in/runtime.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/kernels/cuda/emulator/emulated_memory.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"

using Work = std::vector<std::function<void()>>;

struct CUstream_st {
  Work queue;
  std::unique_ptr<Work> capture;  // null: none
  bool spoilt = false;            // the capture
};
struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  std::shared_ptr<const Work> work;
};

namespace tessera::stand_in {
namespace {

using simt::emulation::DeviceAccess;
using simt::emulation::kMemory;

enum class Space { pageable, pinned, device };

struct Allocation {
  size_t bytes;
  Space space;
};

struct State {
  std::map<uintptr_t, Allocation> allocations;
  std::set<cudaStream_t> streams;
  int64_t graphs = 0;
  Work legacy;  // copies that have not landed
  cudaError_t last = cudaSuccess;
  bool unloaded = false;
  size_t device_bytes = size_t{1} << 32;
  size_t device_used = 0;
  int capability = 9;
  std::map<const void*, size_t> shared_bytes;  // that kernels may have
  std::map<const void*, int> shared_percent;   // that kernels prefer
  Launched launched;
};
State& state() {
  static State& instance = *new State;
  return instance;
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) {
    state().last = error;
  }
  return error;
}

// Returns: the error of a call that a capture forbids, as waits, allocations and cudaMemcpy() are.
// It spoils all captures.
cudaError_t outside_captures() {
  if (state().unloaded) {
    return result(cudaErrorCudartUnloading);
  }
  bool capturing = false;
  for (cudaStream_t stream : state().streams) {
    if (stream->capture != nullptr) {
      stream->spoilt = true;
      capturing = true;
    }
  }
  return result(capturing ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

// Returns: where `address` lies. Aborts if [address, address + bytes) passes an allocation's end.
Space space_of(const void* address, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto after = state().allocations.upper_bound(at);
  if (after == state().allocations.begin()) {
    return Space::pageable;
  }
  const auto& [base, of] = *--after;
  if (at >= base + of.bytes) {
    return Space::pageable;
  }
  TESSERA_CHECK(at + bytes <= base + of.bytes, "a copy passes the end of its allocation");
  return of.space;
}

cudaError_t allocate(void** memory, size_t bytes, Space space) {
  if (const cudaError_t error = outside_captures(); error != cudaSuccess) {
    return error;
  }
  if (space == Space::device && state().device_used + bytes > state().device_bytes) {
    *memory = nullptr;
    return result(cudaErrorMemoryAllocation);
  }
  *memory = space == Space::device ? kMemory.allocate(static_cast<int64_t>(bytes))
                                   : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  state().device_used += space == Space::device ? bytes : 0;
  state().allocations[reinterpret_cast<uintptr_t>(*memory)] = {bytes, space};
  return cudaSuccess;
}

void run(Work& queue) {
  const Work work = std::exchange(queue, {});
  const DeviceAccess access;
  for (const auto& item : work) {
    item();
  }
}

void run_all() {
  run(state().legacy);
  for (cudaStream_t stream : state().streams) {
    run(stream->queue);
  }
}

cudaError_t release(void* memory, Space space) {
  if (const cudaError_t error = outside_captures(); error != cudaSuccess) {
    return error;
  }
  if (memory == nullptr) {
    return cudaSuccess;
  }
  const auto found = state().allocations.find(reinterpret_cast<uintptr_t>(memory));
  if (found == state().allocations.end() || found->second.space != space) {
    return result(cudaErrorInvalidValue);
  }
  if (space == Space::device) {
    run_all();  // cudaFree() waits for the device
    state().device_used -= found->second.bytes;
    kMemory.free(memory);
  } else {
    TESSERA_CHECK(!work_is_pending(), "pinned memory is freed before the work of streams has run");
    std::free(memory);
  }
  state().allocations.erase(found);
  return cudaSuccess;
}

void append(cudaStream_t stream, std::function<void()> item) {
  TESSERA_CHECK(state().streams.contains(stream), "work for a stream that does not exist");
  (stream->capture != nullptr ? *stream->capture : stream->queue).push_back(std::move(item));
}

bool fits(cudaMemcpyKind kind, Space to, Space from) {
  const bool to_device = to == Space::device;
  const bool from_device = from == Space::device;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    default:
      return true;
  }
}

// Returns: a copy whose source is read now if `now`, else when it runs.
std::function<void()> copy_item(void* to, const void* from, size_t bytes, bool now) {
  if (now) {
    const auto* first = static_cast<const std::byte*>(from);
    return [to, kept = std::vector(first, first + bytes)] {
      std::memcpy(to, kept.data(), kept.size());
    };
  }
  return [=] { std::memcpy(to, from, bytes); };
}

}  // namespace

void launch(cudaStream_t stream, std::function<void()> kernel) {
  append(stream, std::move(kernel));
}

bool on_device(const void* memory, size_t bytes) {
  return space_of(memory, bytes) == Space::device;
}

bool work_is_pending() {
  for (cudaStream_t stream : state().streams) {
    if (!stream->queue.empty()) {
      return true;
    }
  }
  return !state().legacy.empty();
}

size_t living() {
  return state().allocations.size() + state().streams.size() + static_cast<size_t>(state().graphs);
}

void unload() {
  state().unloaded = true;
}
void load() {
  state().unloaded = false;
}

void set_device_bytes(size_t bytes) {
  state().device_bytes = bytes;
}

const Launched& last_launch() {
  return state().launched;
}

void set_capability(int major) {
  state().capability = major;
}

}  // namespace tessera::stand_in

namespace tessera::simt::emulation {

void finish_queued() {}  // of the emulation's own stream, which no test beside the stand-in has

}  // namespace tessera::simt::emulation

using namespace tessera::stand_in;

extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return allocate(memory, bytes, Space::device);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return allocate(memory, bytes, Space::pinned);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return allocate(memory, bytes, Space::pinned);
}
cudaError_t cudaFree(void* memory) {
  return release(memory, Space::device);
}
cudaError_t cudaFreeHost(void* memory) {
  return release(memory, Space::pinned);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = state().device_bytes;
  *free = state().device_bytes - state().device_used;
  return outside_captures();
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = outside_captures(); error != cudaSuccess) {
    return error;
  }
  const Space source = space_of(from, bytes);
  if (!fits(kind, space_of(to, bytes), source)) {
    return result(cudaErrorInvalidValue);
  }
  state().legacy.push_back(copy_item(to, from, bytes, source != Space::device));
  if (source != Space::pageable) {
    run(state().legacy);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Space source = space_of(from, bytes);
  if (state().unloaded || !fits(kind, space_of(to, bytes), source)) {
    return result(state().unloaded ? cudaErrorCudartUnloading : cudaErrorInvalidValue);
  }
  TESSERA_CHECK(stream->capture == nullptr ||
                    (source != Space::pageable && space_of(to, bytes) != Space::pageable),
                "a captured copy has pageable memory");
  append(stream, copy_item(to, from, bytes, source == Space::pageable));
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (space_of(to, bytes) != Space::device) {
    return result(cudaErrorInvalidValue);
  }
  append(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  TESSERA_CHECK(flags == cudaStreamNonBlocking, "the stand-in has non-blocking streams alone");
  *stream = new CUstream_st;
  state().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (state().unloaded) {
    return cudaErrorCudartUnloading;
  }
  TESSERA_CHECK(stream->queue.empty(), "a stream is destroyed before its work has run");
  state().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = outside_captures(); error != cudaSuccess) {
    return error;
  }
  run(stream == nullptr || stream == cudaStreamLegacy ? state().legacy : stream->queue);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const cudaError_t error = outside_captures();
  if (error == cudaSuccess) {
    run_all();
  }
  return error;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capture != nullptr) {
    return result(cudaErrorIllegalState);
  }
  stream->capture = std::make_unique<Work>();
  stream->spoilt = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream->capture == nullptr) {
    return result(cudaErrorIllegalState);
  }
  const std::unique_ptr<Work> work = std::move(stream->capture);
  if (stream->spoilt) {
    return result(cudaErrorStreamCaptureInvalidated);
  }
  *graph = new CUgraph_st{std::move(*work)};
  ++state().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{std::make_shared<const Work>(graph->work)};
  ++state().graphs;
  return outside_captures();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  --state().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  if (state().unloaded) {
    return cudaErrorCudartUnloading;
  }
  delete graph;
  --state().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return outside_captures();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  append(stream, [work = graph->work] {
    for (const auto& item : *work) {
      item();
    }
  });
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return std::exchange(state().last, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorCudartUnloading:
      return "driver shutting down";
    default:
      return "another error";
  }
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
    state().shared_percent[kernel] = value;
    return result(value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue);
  }
  TESSERA_CHECK(attribute == cudaFuncAttributeMaxDynamicSharedMemorySize,
                "the stand-in knows two attributes of kernels");
  state().shared_bytes[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  const auto own = state().shared_bytes.find(kernel);
  const size_t most = own != state().shared_bytes.end() ? own->second : size_t{48} << 10;
  if (config->dynamicSmemBytes > most) {
    return result(cudaErrorInvalidValue);
  }
  Launched launched{kernel,           config->stream,           config->gridDim,
                    config->blockDim, config->dynamicSmemBytes, {0, 0, 0}};
  if (const auto percent = state().shared_percent.find(kernel);
      percent != state().shared_percent.end()) {
    launched.shared_percent = percent->second;
  }
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    TESSERA_CHECK(config->attrs[i].id == cudaLaunchAttributeClusterDimension,
                  "the stand-in knows one attribute of launches");
    const auto& size = config->attrs[i].val.clusterDim;
    launched.cluster = {size.x, size.y, size.z};
  }
  append(config->stream, [launched] { state().launched = launched; });
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = state().capability;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedBytes;
      break;
    default:
      TESSERA_CHECK(false, "the stand-in knows three attributes of its device");
  }
  return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

}  // extern "C"
