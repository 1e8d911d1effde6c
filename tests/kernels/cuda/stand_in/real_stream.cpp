// The stream of the emulation (emulated_stream.h) over the backend's CudaStream: mirrored plans,
// collected numbers, downloads and recordings are those of stream.cpp and recording.cpp.

#include <utility>

#include "kernels/cuda/stream/cuda_stream.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"
#include "tests/kernels/cuda/stand_in/runtime.h"

namespace tessera::simt::emulation {

using cuda::CudaStream;

const DeviceLimits& limits(Stream stream) {
  return CudaStream::of(stream).limits();
}
void start(std::function<void()> kernel, Stream stream) {
  stand_in::launch(CudaStream::of(stream).handle(), std::move(kernel));
}
void wait(Stream stream) {
  CudaStream::of(stream).synchronize();
}
const void* mirror(const void* plan, size_t bytes, Stream stream) {
  return CudaStream::of(stream).mirror(plan, bytes);
}
void* collect(void* to, size_t bytes, Stream stream) {
  return CudaStream::of(stream).collect(to, bytes);
}
void download(void* to, const void* from, int64_t bytes, Stream stream) {
  CudaStream::of(stream).download(to, from, static_cast<size_t>(bytes));
}
std::span<std::byte> staging(Stream stream) {
  return CudaStream::of(stream).staging().first(10000);
}

}  // namespace tessera::simt::emulation
