#pragma once

#include <optional>
#include <string_view>

namespace tessera {

// Returns: the choice that has taken the place of one that earlier servers had; nothing for any
// other name. name: a preset or a format ("h2o"), a field of a policy ("lag"), or a value of a
// field ("scorer=keyformer").
std::optional<std::string_view> kv_successor(std::string_view name);

}  // namespace tessera
