#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera {

// Split of text before byte-level BPE, by the name in tokenizer.ggml.pre. Text is not normalised,
// as in llama.cpp; Qwen's own tokenizer.json composes characters (NFC) first.
struct GgufSplit {
  const char* name;
  std::span<const char* const> patterns;  // applied in order, each to the parts of the previous one
  bool ignore_merges = false;             // a word that is a token needs no merges
  bool adds_bos = false;                  // unless tokenizer.ggml.add_bos_token says otherwise
};

// Returns: null if the name is not supported. Not owned.
const GgufSplit* find_gguf_split(std::string_view name);

// Returns: the supported names, separated by ", ".
std::string gguf_split_names();

}  // namespace tessera
