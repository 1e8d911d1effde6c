#include "kernels/cpu/threads/core_share.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

// Machine and cores of a rank, as numbers that ranks can compare: hash of the host name, then the
// affinity mask.
constexpr size_t kPlaceNumbers = 1 + sizeof(cpu_set_t) / sizeof(int64_t);
using Place = std::array<int64_t, kPlaceNumbers>;

int64_t own_machine() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return static_cast<int64_t>(std::hash<std::string_view>()(name));
}

std::vector<int64_t> machines_of(Communicator& ranks) {
  const int64_t own = own_machine();
  std::vector<int64_t> all(static_cast<size_t>(ranks.ranks()));
  ranks.all_gather({&own, 1}, all);
  return all;
}

Place own_place() {
  Place place = {};
  place[0] = own_machine();
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  std::memcpy(place.data() + 1, &cores, sizeof(cores));
  return place;
}

}  // namespace

void take_own_cores(Communicator& ranks) {
  const Place own = own_place();
  std::vector<int64_t> all(kPlaceNumbers * static_cast<size_t>(ranks.ranks()));
  ranks.all_gather(own, all);
  int neighbours = 0;  // ranks with the same machine and cores, this one included
  int before = 0;      // those of them with a lower rank
  for (int32_t rank = 0; rank < ranks.ranks(); ++rank) {
    const auto place = all.begin() + static_cast<int64_t>(kPlaceNumbers) * rank;
    const bool same = std::equal(own.begin(), own.end(), place);
    neighbours += same ? 1 : 0;
    before += same && rank < ranks.rank() ? 1 : 0;
  }
  cpu_set_t cores;
  std::memcpy(&cores, own.data() + 1, sizeof(cores));
  const int share = CPU_COUNT(&cores) / neighbours;
  if (neighbours == 1 || share == 0) {
    return;
  }
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) {
      if (seen / share != before) {
        CPU_CLR(core, &cores);
      }
      ++seen;
    }
  }
  sched_setaffinity(0, sizeof(cores), &cores);
}

int32_t local_rank(Communicator& ranks) {
  const std::vector<int64_t> machines = machines_of(ranks);
  return static_cast<int32_t>(
      std::count(machines.begin(), machines.begin() + ranks.rank(), own_machine()));
}

int32_t local_ranks(Communicator& ranks) {
  const std::vector<int64_t> machines = machines_of(ranks);
  return static_cast<int32_t>(std::count(machines.begin(), machines.end(), own_machine()));
}

}  // namespace tessera
