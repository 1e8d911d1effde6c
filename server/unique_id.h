#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

// Returns: a number that is different for every call in every process. Any thread.
uint64_t unique_number();

// Returns: so many letters and digits from such numbers.
std::string unique_letters(size_t count);

}  // namespace tessera
