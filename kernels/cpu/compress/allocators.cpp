#include "kernels/cpu/compress/allocators.h"

#include "base/check.h"

namespace tessera {

void allocate(const AllocatorInput& input) {
  if (input.sequence.policy.allocates(KvAllocator::pages)) {
    allocate_pages(input);
    return;
  }
  const bool profiled = input.sequence.policy.reads_profile();
  TESSERA_CHECK(!profiled || input.pool.head_profiles != nullptr, "a model without a profile");
  for (size_t row = 0; row < input.budgets.size(); ++row) {
    input.budgets[row] = budget_of_row(input.sequence, input.row_budget,
                                       profiled ? input.pool.head_profiles[row] : HeadProfile());
  }
}

}  // namespace tessera
