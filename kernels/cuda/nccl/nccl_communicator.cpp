#include "kernels/cuda/nccl/nccl_communicator.h"

#include <nccl.h>

#include <bit>

#include "kernels/check.h"
#include "kernels/cuda/stream.h"

namespace tessera::cuda {
namespace {

static_assert(sizeof(NcclGroup) == sizeof(ncclUniqueId));

void check(ncclResult_t result) {
  TESSERA_CHECK(result == ncclSuccess, ncclGetErrorString(result));
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclGroup& group, int32_t rank, int32_t ranks)
      : rank_(rank), ranks_(ranks) {
    check(ncclCommInitRank(&handle_, ranks, std::bit_cast<ncclUniqueId>(group), rank));
  }
  ~NcclCommunicator() override { ncclCommDestroy(handle_); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int32_t rank() const override { return rank_; }
  int32_t ranks() const override { return ranks_; }

  void all_reduce_sum(std::span<float> numbers, Stream stream) override {
    check(ncclAllReduce(numbers.data(), numbers.data(), numbers.size(), ncclFloat32, ncclSum,
                        handle_, CudaStream::of(stream).handle()));
  }

 private:
  const int32_t rank_;
  const int32_t ranks_;
  ncclComm_t handle_ = nullptr;
};

}  // namespace

NcclGroup make_nccl_group() {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id));
  return std::bit_cast<NcclGroup>(id);
}

std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup& group, int32_t rank,
                                                     int32_t ranks) {
  return std::make_unique<NcclCommunicator>(group, rank, ranks);
}

}  // namespace tessera::cuda
