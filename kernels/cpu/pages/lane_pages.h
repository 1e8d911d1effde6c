#pragma once

#include "kernels/cpu/pages/page_ops.h"

namespace tessera {

// The quantiser on vectors, for Lanes of 8 or 16 floats. Only files compiled with the flags of the
// instruction set include it. Its arithmetic is defined in page_codec.h. A sub-line of a tile is
// one vector of 16 lanes of 32 bits (two vectors of 8), with 4 codes in each lane.
template <class Lanes>
struct LanePages {
  using Floats = typename Lanes::Floats;
  using Codes = typename Lanes::Codes;
  static constexpr int kTile = 16;
  static constexpr int kLanes = Lanes::kLanes;
  static constexpr int kLineBytes = 64;

  static void to_stored_f16(const float* in, int64_t count, f16* out) {
    for (int64_t i = 0; i < count; i += 8) {
      Lanes::store_8_as_f16(in + i, out + i);
    }
  }

  static void encode_tile(const DenseTile& from, const CodeTile& to) {
    encode_keys(from, to);
    encode_values(from, to);
  }

 private:
  struct Range {
    Floats scale;
    Floats zero;
  };

  // Ranges of kLanes tokens. Stores both numbers as f16 too.
  static Range code_range(Floats lowest, Floats highest, int bits, f16* scales, f16* zeros) {
    const Floats levels = Lanes::all(static_cast<float>((1 << bits) - 1));
    const Floats zero = Lanes::store_f16(Lanes::add(lowest, Lanes::all(0.0f)), zeros);
    const Floats step = Lanes::div(Lanes::sub(highest, zero), levels);
    // For two zeros, max returns its second operand: the positive zero.
    const Floats positive = Lanes::max(step, Lanes::all(0.0f));
    return {Lanes::store_f16(Lanes::min(positive, Lanes::all(kLargestF16)), scales), zero};
  }

  static Codes code_of(Floats x, const Range& range, Floats last) {
    const Floats code = Lanes::div(Lanes::sub(x, range.zero), range.scale);
    const Floats within = Lanes::min(Lanes::max(code, Lanes::all(0.0f)), last);
    return Lanes::rounded_where_positive(within, range.scale);
  }

  // Packs consecutive sub-lines into lines, `bits` bits of each byte.
  class Packer {
   public:
    Packer(std::byte* lines, int bits) : lines_(lines), bits_(bits) {}

    void add(Codes sub_line) {
      line_ = Lanes::either(line_, Lanes::shift_left(sub_line, shift_));
      shift_ += bits_;
      if (shift_ == 8) {
        flush();
      }
    }
    void finish() {
      if (shift_ > 0) {
        flush();
      }
    }

   private:
    void flush() {
      Lanes::store_codes(lines_, line_);
      lines_ += kLineBytes;
      line_ = Lanes::no_codes();
      shift_ = 0;
    }

    std::byte* lines_;
    int bits_;
    int shift_ = 0;
    Codes line_ = Lanes::no_codes();
  };

  // Lanes are tokens.
  static void encode_keys(const DenseTile& from, const CodeTile& to) {
    const Floats last = Lanes::all(static_cast<float>((1 << to.key_bits) - 1));
    for (int first = 0; first < kTile; first += kLanes) {
      const f16* keys = from.keys + first;
      Floats lowest = Lanes::load_f16(keys);
      Floats highest = lowest;
      for (int c = 1; c < from.head_dim; ++c) {
        const Floats x = Lanes::load_f16(keys + c * kTile);
        lowest = Lanes::min(lowest, x);
        highest = Lanes::max(highest, x);
      }
      const Range range =
          code_range(lowest, highest, to.key_bits, to.key_scales + first, to.key_zeros + first);
      Packer packer(to.keys + 4 * first, to.key_bits);
      for (int c = 0; c < from.head_dim; c += 4) {
        Codes sub_line = Lanes::no_codes();
        for (int e = 0; e < 4; ++e) {
          const Floats x = Lanes::load_f16(keys + (c + e) * kTile);
          sub_line = Lanes::either(sub_line, Lanes::shift_left(code_of(x, range, last), 8 * e));
        }
        packer.add(sub_line);
      }
      packer.finish();
    }
  }

  // Lanes are channels, so each token's scale and zero are broadcast.
  static void encode_values(const DenseTile& from, const CodeTile& to) {
    float scales[kTile];
    float zeros[kTile];
    value_ranges(from, to, scales, zeros);
    const Floats last = Lanes::all(static_cast<float>((1 << to.value_bits) - 1));
    for (int first = 0; first < kTile; first += kLanes) {
      Packer packer(to.values + 4 * first, to.value_bits);
      for (int block = first; block - first < from.head_dim; block += kTile) {
        const int valid = from.head_dim - block;  // channels, from this lane on; may be none
        for (int quad = 0; quad < kTile; quad += 4) {
          Codes sub_line = Lanes::no_codes();
          for (int e = 0; e < 4 && valid > 0; ++e) {
            const int token = quad + e;
            const f16* values = from.values + token * from.head_dim + block;
            const Range range{Lanes::all(scales[token]), Lanes::all(zeros[token])};
            const Codes codes = code_of(Lanes::load_first_f16(values, valid), range, last);
            sub_line = Lanes::either(sub_line, Lanes::shift_left(codes, 8 * e));
          }
          packer.add(Lanes::first_codes(sub_line, valid));
        }
      }
      packer.finish();
    }
  }

  static void value_ranges(const DenseTile& from, const CodeTile& to, float* scales, float* zeros) {
    float lowest[kTile];
    float highest[kTile];
    for (int token = 0; token < kTile; ++token) {
      const f16* values = from.values + token * from.head_dim;
      Floats low = Lanes::load_8_twice_f16(values);
      Floats high = low;
      for (int c = 8; c < from.head_dim; c += kLanes) {
        // The last vector may overlap channels that were read before.
        const int begin = c + kLanes <= from.head_dim ? c : from.head_dim - kLanes;
        const Floats x = Lanes::load_f16(values + begin);
        low = Lanes::min(low, x);
        high = Lanes::max(high, x);
      }
      lowest[token] = Lanes::lowest(low);
      highest[token] = Lanes::highest(high);
    }
    for (int first = 0; first < kTile; first += kLanes) {
      const Range range =
          code_range(Lanes::load(lowest + first), Lanes::load(highest + first), to.value_bits,
                     to.value_scales + first, to.value_zeros + first);
      Lanes::store(scales + first, range.scale);
      Lanes::store(zeros + first, range.zero);
    }
  }
};

}  // namespace tessera
