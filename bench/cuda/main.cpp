// tessera-bench-cuda: decode attention on a GPU against the device's own copy bandwidth, until
// tessera-bench itself can place its operands in device memory. Bytes are those that op_cost
// declares.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/stream.h"
#include "kernels/kv_policy.h"
#include "kernels/op_cost.h"

namespace tessera {
namespace {

using cuda::check;

constexpr int32_t kHeadDim = 128;  // Llama-3-8B
constexpr int32_t kKvHeads = 8;
constexpr int32_t kQueryHeads = 32;
constexpr int32_t kRuns = 30;

class DeviceArray {
 public:
  explicit DeviceArray(size_t bytes) { check(cudaMalloc(&data_, bytes)); }
  DeviceArray(const void* from, size_t bytes) : DeviceArray(bytes) {
    check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

template <class T>
DeviceArray on_device(const std::vector<T>& host) {
  return DeviceArray(host.data(), host.size() * sizeof(T));
}

// The median of what `body` takes on the stream, in milliseconds.
template <class Body>
double median_ms(cuda::CudaStream& stream, Body&& body) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int32_t run = 0; run < kRuns + 5; ++run) {
    check(cudaEventRecord(begin, stream.handle()));
    body();
    check(cudaEventRecord(end, stream.handle()));
    stream.synchronize();
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (run >= 5) {  // the first ones load code and warm clocks
      times.push_back(ms);
    }
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return double{times[kRuns / 2]};
}

double copy_gb_per_s(cuda::CudaStream& stream) {
  constexpr size_t kBytes = size_t{2} << 30;
  const DeviceArray from(kBytes);
  const DeviceArray to(kBytes);
  const double ms = median_ms(stream, [&] {
    check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), kBytes, cudaMemcpyDeviceToDevice,
                          stream.handle()));
  });
  return 2 * static_cast<double>(kBytes) / ms * 1e-6;
}

// Of every tile of a page, `kept` channels of each token at random.
void put_bitmaps(std::byte* bitmaps, int64_t bitmap_bytes, int32_t kept, std::mt19937& random) {
  std::vector<int32_t> channels(kHeadDim);
  std::iota(channels.begin(), channels.end(), 0);
  for (int32_t token = 0; bitmap_bytes > 0 && token < KvPageLayout::kKeyTile; ++token) {
    std::byte* bitmap = bitmaps + token * bitmap_bytes;
    std::fill_n(bitmap, bitmap_bytes, std::byte{0});
    std::shuffle(channels.begin(), channels.end(), random);
    for (int32_t i = 0; i < kept; ++i) {
      const int32_t channel = channels[static_cast<size_t>(i)];
      bitmap[channel / 8] |= static_cast<std::byte>(1 << channel % 8);
    }
  }
}

// Pages of a layout. Every word is two f16 of moderate size, so whatever a word is (codes, scales,
// zeros, floats) it is a number, and none is 0 for long; but bitmaps have as many bits as channels
// are kept.
void fill(std::byte* memory, const KvPageLayout& layout, size_t bytes) {
  constexpr int32_t kPages = 64;  // then again
  std::mt19937 random(1);
  std::vector<uint32_t> words(kPages * static_cast<size_t>(layout.page_bytes) / 4);
  for (uint32_t& word : words) {
    word = (static_cast<uint32_t>(random()) & 0x83ff83ffu) | 0x2c002c00u;
  }
  auto* pages = reinterpret_cast<std::byte*>(words.data());
  for (int32_t page = 0; layout.format.is_sparse() && page < kPages; ++page) {
    for (int32_t tile = 0; tile < layout.capacity / KvPageLayout::kKeyTile; ++tile) {
      std::byte* at = pages + page * layout.page_bytes;
      put_bitmaps(at + layout.keys_offset(tile) + layout.key_bitmap_offset(0),
                  layout.key_bitmap_bytes(), layout.format.kept_keys(kHeadDim), random);
      put_bitmaps(at + layout.values_offset(tile) + layout.value_bitmap_offset(0),
                  layout.value_bitmap_bytes(), layout.format.kept_values(kHeadDim), random);
    }
  }
  for (size_t at = 0; at < bytes; at += words.size() * 4) {
    check(cudaMemcpy(memory + at, words.data(), std::min(words.size() * 4, bytes - at),
                     cudaMemcpyHostToDevice));
  }
}

void decode(cuda::CudaStream& stream, KvFormat format, int32_t batch, int32_t context,
            double copy) {
  KvPagesView pages;
  pages.layouts[0] = KvPageLayout::make(format, kHeadDim, kKvGroup);
  pages.window_layout = KvPageLayout::make(kKvF16, kHeadDim, kKvGroup);
  pages.page_bytes = pages.layouts[0].page_bytes;
  pages.layers = 1;
  pages.kv_heads = kKvHeads;
  pages.head_dim = kHeadDim;
  pages.row_pages = context / kKvGroup;
  const size_t rows = static_cast<size_t>(batch) * kKvHeads;
  std::vector<int32_t> tables(rows * static_cast<size_t>(pages.row_pages));
  for (size_t i = 0; i < tables.size(); ++i) {
    tables[i] = static_cast<int32_t>(i);
  }
  std::shuffle(tables.begin(), tables.end(), std::mt19937(2));
  std::vector<KvRow> counts(rows, {context, 0});
  const size_t arena_bytes = tables.size() * static_cast<size_t>(pages.page_bytes);
  const DeviceArray arena(arena_bytes);
  fill(arena.as<std::byte>(), pages.layouts[0], arena_bytes);
  const size_t window_bytes = rows * static_cast<size_t>(pages.window_layout.page_bytes);
  const DeviceArray windows(window_bytes);
  fill(windows.as<std::byte>(), pages.window_layout, window_bytes);
  const DeviceArray device_tables = on_device(tables);
  const DeviceArray device_counts = on_device(counts);
  std::vector<SequenceSpan> spans;
  for (int32_t i = 0; i < batch; ++i) {
    spans.push_back({i, i, 1, context, {}});
  }
  const int64_t cols = int64_t{kQueryHeads} * kHeadDim;
  std::vector<float> queries(static_cast<size_t>(batch * cols));
  std::mt19937 random(3);
  for (float& x : queries) {
    x = std::normal_distribution<float>()(random);
  }
  const DeviceArray device_queries = on_device(queries);
  const DeviceArray out(queries.size() * sizeof(float));
  const Backend& backend = cuda_backend();
  const int64_t scratch_bytes =
      backend.attention_scratch_bytes({batch, batch, context + 1}, kQueryHeads, kHeadDim);
  const DeviceArray scratch(static_cast<size_t>(scratch_bytes));
  pages.rows = counts.data();  // op_cost looks at counts, the kernel at the device's
  AttentionArgs args{.queries = {device_queries.as<float>(), batch, cols, cols},
                     .sequences = spans,
                     .pages = pages,
                     .query_heads = kQueryHeads,
                     .scale = 1 / std::sqrt(static_cast<float>(kHeadDim)),
                     .dense = {},
                     .out = {out.as<float>(), batch, cols, cols},
                     .log_sums = {},
                     .scratch = {scratch.as<std::byte>(), static_cast<size_t>(scratch_bytes)}};
  const OpCost cost = op_cost(args);
  args.pages.arena = arena.as<std::byte>();
  args.pages.windows = windows.as<std::byte>();
  args.pages.tables = device_tables.as<int32_t>();
  args.pages.rows = device_counts.as<KvRow>();
  const double ms = median_ms(stream, [&] { backend.attention(args, stream.stream()); });
  const double gb = static_cast<double>(cost.bytes()) / ms * 1e-6;
  std::printf("| decode %d x 1 at %d | %s | %.3f | %.0f | %.0f %% |\n", batch, context,
              name_of(format).c_str(), ms, gb, 100 * gb / copy);
}

int run() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "no GPU: %s\n", cudaGetErrorString(error));
    return 1;
  }
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  cuda::CudaStream stream;
  const double copy = copy_gb_per_s(stream);
  std::printf("%s, copy %.0f GB/s (read and written)\n\n", device.name, copy);
  std::printf("| GQA 4, head_dim 128, 8 KV heads | KV | ms a layer | GB/s | of copy |\n");
  std::printf("|---|---|--:|--:|--:|\n");
  for (const auto& [batch, context] : {std::pair{32, 8192}, std::pair{4, 65536}, {1, 8192}}) {
    for (const KvFormat format : {kKvF16, kKvK8V8, kKvK8V4, kKvK4V4, kKvK4V2, kKvS50, kKvS70,
                                  kKvS50K8V8, kKvS70K8V4, kKvS70K4V4}) {
      decode(stream, format, batch, context, copy);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main() {
  return tessera::run();
}
