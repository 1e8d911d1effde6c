#include "text/gguf_patterns.h"

namespace tessera {
namespace {

// Expressions in the dialect of tokenizer.json.
constexpr const char* kGpt2[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};

constexpr const char* kSmolLm[] = {
    R"(\p{N})", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};

constexpr const char* kLlama3Patterns[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr const char* kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr const char* kTekken[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr const char* kDefault[] = {
    R"([\p{P}\$\+<=>\^~\|]+)",
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))", R"(\p{N}+)",
    R"([0-9][0-9][0-9])"};

// The names of one pattern are those that llama.cpp's converter gives to models whose tokenizers
// split alike.
constexpr GgufSplit kSplits[] = {{"llama-bpe", kLlama3Patterns, true, true},
                                 {"llama3", kLlama3Patterns, true, true},
                                 {"llama-v3", kLlama3Patterns, true, true},
                                 {"falcon3", kLlama3Patterns, true, true},
                                 {"falcon-h1", kLlama3Patterns, true, true},
                                 {"pixtral", kLlama3Patterns, true, true},
                                 {"midm-2.0", kLlama3Patterns, true, true},
                                 {"lfm2", kLlama3Patterns, true, true},
                                 {"glm4", kLlama3Patterns, true},
                                 {"chatglm-bpe", kLlama3Patterns},
                                 {"dbrx", kLlama3Patterns},
                                 {"smaug-bpe", kLlama3Patterns},
                                 {"smollm", kSmolLm},
                                 {"starcoder", kSmolLm},
                                 {"refact", kSmolLm},
                                 {"command-r", kSmolLm, false, false, true},
                                 {"codeshell", kSmolLm},
                                 {"exaone", kSmolLm},
                                 {"minerva-7b", kSmolLm},
                                 {"qwen2", kQwen2, false, false, true},
                                 {"deepseek-r1-qwen", kQwen2, false, false, true},
                                 {"stablelm2", kQwen2},
                                 {"megrez", kQwen2},
                                 {"hunyuan", kQwen2},
                                 {"kormo", kQwen2},
                                 {"grok-2", kQwen2},
                                 {"solar-open", kQwen2},
                                 {"tekken", kTekken, true, true},
                                 {"gpt-2", kGpt2},
                                 {"phi-2", kGpt2},
                                 {"mpt", kGpt2},
                                 {"olmo", kGpt2, false, false, true},
                                 {"jais", kGpt2},
                                 {"trillion", kGpt2},
                                 {"exaone4", kGpt2},
                                 {"gigachat", kGpt2},
                                 {"mellum", kGpt2},
                                 {"a.x-4.0", kGpt2},
                                 {"granite-docling", kGpt2},
                                 {"default", kDefault}};

}  // namespace

const GgufSplit* find_gguf_split(std::string_view name) {
  for (const GgufSplit& split : kSplits) {
    if (split.name == name) return &split;
  }
  return nullptr;
}

std::string gguf_split_names() {
  std::string names;
  for (const GgufSplit& split : kSplits) {
    if (!names.empty()) names += ", ";
    names += split.name;
  }
  return names;
}

}  // namespace tessera
