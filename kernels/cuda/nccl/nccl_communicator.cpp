#include "kernels/cuda/nccl/nccl_communicator.h"

#include <nccl.h>

#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/stream/cuda_stream.h"

namespace tessera::cuda {
namespace {

void check(ncclResult_t result) {
  TESSERA_CHECK(result == ncclSuccess, ncclGetErrorString(result));
}

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::unique_ptr<Communicator> hosts) : hosts_(std::move(hosts)) {
    ncclUniqueId group = {};  // created by rank 0
    if (hosts_->rank() == 0) {
      check(ncclGetUniqueId(&group));
    }
    hosts_->broadcast(std::as_writable_bytes(std::span(&group, 1)));
    check(ncclCommInitRank(&handle_, hosts_->ranks(), group, hosts_->rank()));
  }
  ~NcclCommunicator() override { ncclCommDestroy(handle_); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int32_t rank() const override { return hosts_->rank(); }
  int32_t ranks() const override { return hosts_->ranks(); }

  void all_reduce_sum(std::span<float> numbers, Stream stream) override {
    check(ncclAllReduce(numbers.data(), numbers.data(), numbers.size(), ncclFloat32, ncclSum,
                        handle_, CudaStream::of(stream).handle()));
  }

  bool records_sums() const override { return true; }

  void broadcast(std::span<std::byte> bytes) override { hosts_->broadcast(bytes); }
  void all_gather(std::span<const int64_t> own, std::span<int64_t> all) override {
    hosts_->all_gather(own, all);
  }
  [[noreturn]] void abort() override {
    hosts_->abort();
    std::abort();  // GCC 12 ignores [[noreturn]] on a virtual function
  }

 private:
  const std::unique_ptr<Communicator> hosts_;
  ncclComm_t handle_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> hosts) {
  return std::make_unique<NcclCommunicator>(std::move(hosts));
}

}  // namespace tessera::cuda
