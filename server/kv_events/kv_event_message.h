#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/tier/prefix_events.h"

namespace tessera {

// Most tokens and events of one message, unless one block has more tokens: about 130 kB.
inline constexpr std::size_t kKvMessageTokens = std::size_t{1} << 14;
inline constexpr std::size_t kKvMessageEvents = std::size_t{1} << 10;

// Writes a batch as messages in MessagePack, in the form of vLLM's KV events, which llm-d's router
// and others read. A message is an array [seconds, events, 0]; the last is a data-parallel rank.
// An event is one of
//   ["BlockStored", [block, ...], parent or nil, [token, ...], block_tokens, nil, nil]
//   ["BlockRemoved", [block, ...], nil]
// with nil for LoRA and for the medium, which means the fastest one. Blocks that follow each other
// on one path are one event, as are consecutive removals. Copies in the stores below the cache have
// the medium "CPU" or "DISK", no parent and no tokens, as those of vLLM's offloading: routers know
// them by the names of their blocks.
// seconds: since 1970. `send` is called with each message, in order.
void write_kv_messages(const PrefixEvents::Batch& batch, int32_t block_tokens, double seconds,
                       const std::function<void(const std::string&)>& send);

}  // namespace tessera
