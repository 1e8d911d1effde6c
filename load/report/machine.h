#pragma once

#include <string>

namespace tessera::load {

// Returns: this machine in words: "4 x AMD EPYC 9B14, load average 2.5".
std::string describe_machine();

}  // namespace tessera::load
