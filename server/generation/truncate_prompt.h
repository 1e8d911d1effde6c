#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

struct GenerateRequest;

// Drops the first tokens of a prompt that is longer than GenerateRequest::truncate_prompt says. A
// BOS that begins it stays.
void truncate_prompt(const GenerateRequest& request, int32_t context, std::optional<int32_t> bos_id,
                     std::vector<int32_t>& prompt);

}  // namespace tessera
