#pragma once

#include "server/base/byte_budget.h"
#include "server/base/work_pool.h"

namespace tessera {

// The budget and the pool that the requests of both front ends share. They outlive the front ends.
struct RequestWork {
  ByteBudget& budget;
  WorkPool& pool;
};

}  // namespace tessera
