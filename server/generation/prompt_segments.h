#pragma once

#include <cstddef>
#include <vector>

#include "text/tokenizer.h"

namespace tessera {

// Returns: true if a template has begun the thought of the answer.
bool ends_in_thought(const std::vector<TextSegment>& segments);

// Returns: bytes of all texts.
std::size_t bytes_of(const std::vector<TextSegment>& segments);

}  // namespace tessera
