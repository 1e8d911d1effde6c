#include "kernels/cuda_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_backend.h"

namespace tessera {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(CudaLibrary, SaysWhatIsMissing) {
  const CudaLibrary library = open_cuda_library();
  if (library.backend != nullptr) {
    EXPECT_EQ(library.error, "");
    EXPECT_EQ(missing_ops(*library.backend), "");
    return;
  }
  EXPECT_THAT(library.error, AnyOf(HasSubstr("there is no "), HasSubstr("finds no GPU: "),
                                   HasSubstr("it lacks linear")));
  std::cout << library.error << "\n";
}

TEST(CudaLibrary, FindsNothingMissingInTheCpuBackendAndNamesWhatIs) {
  Backend backend = cpu_backend(CpuIsa::scalar);
  EXPECT_EQ(missing_ops(backend), "");
  backend.rope = nullptr;
  backend.kv_score = nullptr;
  EXPECT_EQ(missing_ops(backend), "rope, kv_score");
}

}  // namespace
}  // namespace tessera
