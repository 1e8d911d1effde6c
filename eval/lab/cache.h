#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/lab/prompt.h"
#include "eval/lab/rows.h"

namespace tessera::lab {

// The tokens that one KV head keeps. A method may drop entries, replace their rows by those of a
// compressed representation, or let one entry stand for several tokens.
struct HeadCache {
  std::vector<int32_t> positions;  // of each entry
  Rows keys;                       // [entries, head_dim], after RoPE
  Rows values;                     // [entries, head_dim]
  // Added to q . k * scale of each entry, in nats; 0 for one token as it is.
  std::vector<float> bias;

  int32_t size() const { return static_cast<int32_t>(positions.size()); }
  void add(int32_t position, std::span<const float> key, std::span<const float> value) {
    positions.push_back(position);
    keys.add(key);
    values.add(value);
    bias.push_back(0);
  }
  // Keeps these entries and drops the others.
  // Requires: ascending indices.
  void keep(std::span<const int32_t> entries) {
    for (size_t i = 0; i < entries.size(); ++i) {
      positions[i] = positions[static_cast<size_t>(entries[i])];
      bias[i] = bias[static_cast<size_t>(entries[i])];
    }
    positions.resize(entries.size());
    bias.resize(entries.size());
    keys.keep(entries);
    values.keep(entries);
  }
};

// What a sequence keeps: one HeadCache for each layer and KV head.
struct Cache {
  Cache() = default;
  explicit Cache(const Shape& of) : shape(of) {
    heads.resize(static_cast<size_t>(of.layers) * static_cast<size_t>(of.kv_heads));
    for (HeadCache& head : heads) {
      head.keys = head.values = Rows(of.head_dim);
    }
  }

  HeadCache& at(int32_t layer, int32_t kv_head) { return heads[index(layer, kv_head)]; }
  const HeadCache& at(int32_t layer, int32_t kv_head) const { return heads[index(layer, kv_head)]; }
  int64_t entries() const {
    int64_t all = 0;
    for (const HeadCache& head : heads) all += head.size();
    return all;
  }

  Shape shape;
  std::vector<HeadCache> heads;
  int32_t tokens = 0;  // of the sequence: the next token's position

 private:
  size_t index(int32_t layer, int32_t kv_head) const {
    return static_cast<size_t>(layer * shape.kv_heads + kv_head);
  }
};

// Adds the prompt's tokens at `positions` to the cache of one head.
// Requires: ascending positions.
void add_tokens(const Prompt& prompt, int32_t layer, int32_t kv_head,
                std::span<const int32_t> positions, Cache& to);

// Adds all tokens to every head.
void add_all_tokens(const Prompt& prompt, Cache& to);

}  // namespace tessera::lab
