#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

// Names that a client cannot guess: an id of a stored response gives access to it. They come from
// OpenSSL's generator (RAND_bytes), so earlier names tell nothing about later ones.

inline constexpr std::size_t kMaxRequestId = 128;  // bytes of a name that a client gives a request

// Returns: a number that is different for every call in every process. Any thread.
uint64_t unique_number();

// Returns: so many random letters and digits, each with 5.17 bits. Any thread.
std::string unique_letters(std::size_t count);

}  // namespace tessera
