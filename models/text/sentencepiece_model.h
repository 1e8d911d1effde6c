#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// What a sentencepiece `tokenizer.model` says. The file is read by our own hand: the library of the
// distribution brings a protobuf runtime whose symbols clash with gRPC's in one process.
struct SentencePieceModel {
  // The numbers of the file format.
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };

  std::vector<Piece> pieces;  // their index is the token id
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  std::string unknown_piece = "<unk>";
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";

  // Errors: InvalidArgument for bytes that are no such model (cut off, pieces that are empty, no
  // UTF-8 or there twice, no or two unknown pieces, missing byte pieces ...), Unimplemented with
  // the name of what we do not run (model types but BPE, normalizers but identity).
  static absl::StatusOr<SentencePieceModel> parse(std::string_view bytes);

  // Requires: the piece is a byte piece, "<0x41>".
  static char byte_of(const Piece& piece);
};

}  // namespace tessera
