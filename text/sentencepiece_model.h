#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// Contents of a sentencepiece `tokenizer.model`, or of a GGUF file with scores. The former
// has a parser of its own here. The distribution's library brings a protobuf runtime, and its
// symbols clash with gRPC's in one process.
struct SentencePieceModel {
  // Values as in the file format.
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };

  std::vector<Piece> pieces;  // indexed by token id
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  std::string unknown_piece = "<unk>";
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";

  // Errors: InvalidArgument for a malformed model (truncated; pieces that are empty, duplicate or
  // not UTF-8; no or two unknown pieces; missing byte pieces ...); Unimplemented with the name of
  // an unsupported part (model types except BPE, normalizers except identity).
  static absl::StatusOr<SentencePieceModel> parse(std::string_view bytes);

  // Checks pieces that another file format holds.
  // Errors: InvalidArgument, those of parse() about pieces.
  absl::Status check() const;

  // Returns: the byte of a byte piece such as "<0x41>".
  // Requires: the piece is a byte piece.
  static char byte_of(const Piece& piece);
};

}  // namespace tessera
