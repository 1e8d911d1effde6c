#include "text/sentencepiece_model.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/protobuf_reader.h"

namespace tessera {
namespace {

using Field = ProtobufReader::Field;
using Piece = SentencePieceModel::Piece;
using Type = SentencePieceModel::Type;

constexpr uint64_t kModelTypeBpe = 2;

absl::Status malformed(const std::string& where) {
  return absl::InvalidArgumentError("not a sentencepiece model: " + where + " is malformed");
}

std::optional<char> byte_value(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text.back() != '>') return std::nullopt;
  unsigned value = 0;
  const char* end = text.data() + 5;
  const auto [stopped, error] = std::from_chars(text.data() + 3, end, value, 16);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return static_cast<char>(value);
}

absl::Status check_piece(const Piece& piece, const std::string& name) {
  if (piece.text.empty()) return absl::InvalidArgumentError(name + " is empty");
  if (!is_valid_utf8(piece.text)) return absl::InvalidArgumentError(name + " is not UTF-8");
  if (std::isnan(piece.score)) return absl::InvalidArgumentError(name + "'s score is not a number");
  if (piece.type == Type::byte && !byte_value(piece.text)) {
    return absl::InvalidArgumentError(name + " \"" + piece.text + "\" is no byte like \"<0x0A>\"");
  }
  return absl::OkStatus();
}

absl::StatusOr<Piece> parse_piece(std::string_view bytes, size_t id) {
  const std::string name = "piece " + std::to_string(id);
  Piece piece;
  ProtobufReader reader(bytes);
  while (const std::optional<Field> field = reader.next()) {
    if (field->number == 1 && field->kind == Field::Kind::bytes) {
      piece.text = field->bytes;
    } else if (field->number == 2 && field->kind == Field::Kind::fixed32) {
      piece.score = field->as_float();
    } else if (field->number == 3 && field->kind == Field::Kind::varint) {
      if (field->integer < 1 || field->integer > 6) {
        return absl::InvalidArgumentError(name + " has the unknown type " +
                                          std::to_string(field->integer));
      }
      piece.type = static_cast<Type>(field->integer);
    }
  }
  if (!reader.ok()) return malformed(name);
  TESSERA_RETURN_IF_ERROR(check_piece(piece, name));
  return piece;
}

absl::Status parse_trainer(std::string_view bytes, SentencePieceModel& model) {
  uint64_t model_type = 1;
  ProtobufReader reader(bytes);
  while (const std::optional<Field> field = reader.next()) {
    const bool text = field->kind == Field::Kind::bytes;
    switch (field->number) {
      case 3:
        model_type = field->integer;
        break;
      case 24:
        if (field->integer != 0) {
          return absl::UnimplementedError(
              "sentencepiece setting treat_whitespace_as_suffix is not supported");
        }
        break;
      case 35:
        model.byte_fallback = field->integer != 0;
        break;
      case 45:
        if (text) model.unknown_piece = field->bytes;
        break;
      case 46:
        if (text) model.bos_piece = field->bytes;
        break;
      case 47:
        if (text) model.eos_piece = field->bytes;
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) return malformed("trainer_spec");
  if (model_type != kModelTypeBpe) {
    constexpr std::array<const char*, 5> kNames = {"?", "unigram", "bpe", "word", "char"};
    const std::string name =
        model_type < kNames.size() ? kNames[model_type] : std::to_string(model_type);
    return absl::UnimplementedError("sentencepiece model type " + name +
                                    " is not supported, only bpe");
  }
  return absl::OkStatus();
}

absl::Status parse_normalizer(std::string_view bytes, SentencePieceModel& model) {
  std::string name = "identity";
  bool rules = false;
  bool escapes = true;
  ProtobufReader reader(bytes);
  while (const std::optional<Field> field = reader.next()) {
    switch (field->number) {
      case 1:
        name = field->bytes;
        break;
      case 2:
        rules = !field->bytes.empty();
        break;
      case 3:
        model.add_dummy_prefix = field->integer != 0;
        break;
      case 4:
        model.remove_extra_whitespaces = field->integer != 0;
        break;
      case 5:
        escapes = field->integer != 0;
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) return malformed("normalizer_spec");
  if (rules) {
    return absl::UnimplementedError("sentencepiece normalizer " + name +
                                    " is not supported, only identity");
  }
  if (!escapes) {
    return absl::UnimplementedError(
        "sentencepiece setting escape_whitespaces=false is not supported");
  }
  return absl::OkStatus();
}

absl::Status check_pieces(const SentencePieceModel& model) {
  std::unordered_set<std::string_view> texts;
  int unknown = 0;
  int bytes = 0;
  for (const Piece& piece : model.pieces) {
    if (!texts.insert(piece.text).second) {
      return absl::InvalidArgumentError("piece \"" + piece.text + "\" is there twice");
    }
    unknown += piece.type == Type::unknown ? 1 : 0;
    bytes += piece.type == Type::byte ? 1 : 0;
  }
  if (unknown != 1) {
    return absl::InvalidArgumentError("a sentencepiece model has one unknown piece, this one " +
                                      std::to_string(unknown));
  }
  if (model.byte_fallback && bytes != 256) {
    return absl::InvalidArgumentError("byte_fallback needs 256 byte pieces, there are " +
                                      std::to_string(bytes));
  }
  return absl::OkStatus();
}

}  // namespace

char SentencePieceModel::byte_of(const Piece& piece) {
  return byte_value(piece.text).value_or('\0');
}

absl::Status SentencePieceModel::check() const {
  for (size_t id = 0; id < pieces.size(); ++id) {
    TESSERA_RETURN_IF_ERROR(check_piece(pieces[id], "piece " + std::to_string(id)));
  }
  return check_pieces(*this);
}

absl::StatusOr<SentencePieceModel> SentencePieceModel::parse(std::string_view bytes) {
  SentencePieceModel model;
  ProtobufReader reader(bytes);
  bool has_trainer = false;
  while (const std::optional<Field> field = reader.next()) {
    if (field->kind != Field::Kind::bytes) continue;
    if (field->number == 1) {
      TESSERA_ASSIGN_OR_RETURN(Piece piece, parse_piece(field->bytes, model.pieces.size()));
      model.pieces.push_back(std::move(piece));
    } else if (field->number == 2) {
      has_trainer = true;
      TESSERA_RETURN_IF_ERROR(parse_trainer(field->bytes, model));
    } else if (field->number == 3) {
      TESSERA_RETURN_IF_ERROR(parse_normalizer(field->bytes, model));
    }
  }
  if (!reader.ok()) return malformed("the file");
  if (model.pieces.empty() || !has_trainer) {
    return absl::InvalidArgumentError("not a sentencepiece model: no pieces or no trainer_spec");
  }
  TESSERA_RETURN_IF_ERROR(check_pieces(model));
  return model;
}

}  // namespace tessera
