#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera {

// Split of text before byte-level BPE, by the name in tokenizer.ggml.pre. llama.cpp never composes
// characters. The tokenizers of Qwen, Command R and OLMo in transformers do, so texts with
// combining marks have other tokens there.
struct GgufSplit {
  const char* name;
  std::span<const char* const> patterns;  // applied in order, each to the parts of the previous one
  bool ignore_merges = false;             // a word that is a token needs no merges
  bool adds_bos = false;                  // unless tokenizer.ggml.add_bos_token says otherwise
  bool composes = false;                  // text is normalised to NFC first
};

// Returns: null if the name is not supported. Not owned.
const GgufSplit* find_gguf_split(std::string_view name);

// Returns: the supported names, separated by ", ".
std::string gguf_split_names();

}  // namespace tessera
