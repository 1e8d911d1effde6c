#pragma once

#include "kernels/communicator.h"

namespace tessera {

// Ranks on one machine that may all use the same cores would pin their threads to the same ones.
// Each of them keeps its share, in order: of 16 cores and two ranks the first 8 and the last 8,
// which is a socket each where the system numbers them so. Nothing happens where the launcher has
// bound the ranks to cores of their own, or where there are fewer cores than ranks. Collective;
// holds for the calling thread and those it starts later.
void take_own_cores(Communicator& ranks);

// How many ranks before this one stand on its machine. Collective.
int32_t local_rank(Communicator& ranks);

}  // namespace tessera
