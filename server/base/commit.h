#pragma once

#include <string_view>

namespace tessera {

// Returns: the commit that this was built from, abbreviated, with "-dirty" if files differed from
// it; "unknown" if it was built outside a repository without TESSERA_COMMIT. The release is
// TESSERA_VERSION.
std::string_view commit();

}  // namespace tessera
