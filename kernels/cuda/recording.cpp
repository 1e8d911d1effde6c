#include "kernels/recording.h"

#include <cuda_runtime.h>

#include <vector>

#include "base/check.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/stream/cuda_stream.h"

namespace tessera::cuda {
namespace {

// A CUDA graph. Kernel arguments are those of the captured launches. Kernels read plans from the
// stream's one buffer for recorded plans, which start() fills.
class CudaGraph final : public Recording {
 public:
  CudaGraph(const RecordArgs& args, CudaStream& stream) : plan_bytes_(args.plan.size()) {
    stream.put_recorded(std::vector<std::byte>(plan_bytes_));
    stream.set_recorded(args.plan);
    args.ops();
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal));
    args.ops();
    check(cudaStreamEndCapture(stream.handle(), &graph));
    stream.set_recorded({});
    check(cudaGraphInstantiate(&graph_, graph, 0));
    check(cudaGraphDestroy(graph));
    check(cudaGraphUpload(graph_, stream.handle()));
    stream.synchronize();
  }
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void start(std::span<const std::byte> plan, Stream stream) const override {
    TESSERA_CHECK(plan.size() == plan_bytes_, "a recording is started with a plan of another size");
    CudaStream& on = CudaStream::of(stream);
    on.put_recorded(plan);
    check(cudaGraphLaunch(graph_, on.handle()));
  }

 private:
  const size_t plan_bytes_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

std::unique_ptr<Recording> record(const RecordArgs& args, Stream stream) {
  return std::make_unique<CudaGraph>(args, CudaStream::of(stream));
}

}  // namespace tessera::cuda
