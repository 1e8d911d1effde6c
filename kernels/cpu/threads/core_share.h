#pragma once

#include "kernels/communicator.h"

namespace tessera {

// Divides the cores among the ranks of one machine, because ranks with the same cores would pin
// their threads to the same ones. Each rank keeps its share, in order of ranks. With 16 cores and
// two ranks, these are the first 8 and the last 8. That is one socket each if the system numbers
// cores so.
// No effect if the launcher has bound the ranks to different cores, or if there are fewer cores
// than ranks. Applies to the calling thread and to threads that it starts later. Collective.
void take_own_cores(Communicator& ranks);

// Returns: number of lower ranks on the machine of this rank. Collective.
int32_t local_rank(Communicator& ranks);

// Returns: number of ranks on the machine of this rank, this one included. Collective.
int32_t local_ranks(Communicator& ranks);

}  // namespace tessera
