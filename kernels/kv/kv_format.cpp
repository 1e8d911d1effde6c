#include "kernels/kv/kv_format.h"

namespace tessera {
namespace {

// Parses a text from its front.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool take(std::string_view expected) {
    if (!rest_.starts_with(expected)) {
      return false;
    }
    rest_.remove_prefix(expected.size());
    return true;
  }

  // Returns: a number without sign or leading zeros; nothing if there is none, or more than 3
  // digits.
  std::optional<int> number() {
    int value = 0;
    size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      if (digits == 3) {
        return std::nullopt;
      }
      value = 10 * value + (rest_[digits] - '0');
    }
    if (digits == 0 || (digits > 1 && rest_[0] == '0')) {
      return std::nullopt;
    }
    rest_.remove_prefix(digits);
    return value;
  }

  // Returns: kept channels of 1000, parsed from the pruned per cent with at most one decimal.
  std::optional<uint16_t> keep() {
    const std::optional<int> whole = number();
    if (!whole.has_value()) {
      return std::nullopt;
    }
    int pruned = 10 * *whole;
    if (take(".")) {
      const std::optional<int> tenth = number();
      if (!tenth.has_value() || *tenth < 1 || *tenth > 9) {
        return std::nullopt;
      }
      pruned += *tenth;
    }
    return pruned < KvFormat::kKeepAll
               ? std::optional<uint16_t>(static_cast<uint16_t>(KvFormat::kKeepAll - pruned))
               : std::nullopt;
  }

  bool bits(uint8_t& out) {
    const std::optional<int> value = number();
    out = static_cast<uint8_t>(value.value_or(0) <= 32 ? value.value_or(0) : 0);
    return value.has_value();
  }

  bool done() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

std::string pruned(uint16_t keep) {
  const int of_1000 = KvFormat::kKeepAll - keep;
  const std::string whole = std::to_string(of_1000 / 10);
  return of_1000 % 10 == 0 ? whole : whole + "." + std::to_string(of_1000 % 10);
}

std::string bits_name(KvFormat format) {
  return "k" + std::to_string(format.key_bits) + "v" + std::to_string(format.value_bits);
}

}  // namespace

std::string name_of(KvFormat format) {
  if (!is_supported(format)) {
    return "?";
  }
  if (format.e4m3) {
    return "fp8";
  }
  if (format.is_floats()) {
    return "f" + std::to_string(format.key_bits);
  }
  if (format.is_codes()) {
    return bits_name(format) + (format.rotated ? "r" : "");
  }
  std::string name = "s" + pruned(format.key_keep);
  if (format.value_keep != format.key_keep) {
    name += "v" + pruned(format.value_keep);
  }
  return format.key_bits == 16 && format.value_bits == 16 ? name : name + "-" + bits_name(format);
}

std::optional<KvFormat> kv_format_named(std::string_view name) {
  KvFormat format;
  Reader reader(name);
  if (name == name_of(kKvFp8)) {
    return kKvFp8;
  }
  bool bits = reader.take("k");
  if (reader.take("f")) {
    if (!reader.bits(format.key_bits)) {
      return std::nullopt;
    }
    format.value_bits = format.key_bits;
  } else if (reader.take("s")) {
    const std::optional<uint16_t> keys = reader.keep();
    const std::optional<uint16_t> values = reader.take("v") ? reader.keep() : keys;
    if (!keys.has_value() || !values.has_value()) {
      return std::nullopt;
    }
    format.key_keep = *keys;
    format.value_keep = *values;
    bits = reader.take("-k");
  }
  if (bits &&
      !(reader.bits(format.key_bits) && reader.take("v") && reader.bits(format.value_bits))) {
    return std::nullopt;
  }
  format.rotated = bits && reader.take("r");
  // Only the canonical name of a format is accepted.
  return reader.done() && name_of(format) == name ? std::optional(format) : std::nullopt;
}

}  // namespace tessera
