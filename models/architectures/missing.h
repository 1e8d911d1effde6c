#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Returns: a sentence about the part that this engine lacks for a well-known architecture, such as
// "multi-head latent attention (MLA) is not supported"; empty for one that is not known.
std::string missing_part(std::string_view architecture);

}  // namespace tessera
