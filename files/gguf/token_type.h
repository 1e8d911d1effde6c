#pragma once

namespace tessera {

// Numbers of tokenizer.ggml.token_type, which are those of sentencepiece.
inline constexpr int kGgufNormalToken = 1;
inline constexpr int kGgufControlToken = 3;
inline constexpr int kGgufUserDefinedToken = 4;
inline constexpr int kGgufLastTokenType = 6;

}  // namespace tessera
