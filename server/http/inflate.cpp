#include "server/http/inflate.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"

namespace tessera {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;

// zlib's state of one body.
class Inflater {
 public:
  Inflater() { ok_ = inflateInit2(&stream_, kWindowBits) == Z_OK; }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  bool ok() const { return ok_; }
  z_stream& stream() { return stream_; }

 private:
  static constexpr int kWindowBits = 15 + 32;  // the largest window; gzip or zlib, by the header
  z_stream stream_{};
  bool ok_ = false;
};

bool equals(std::string_view coding, const char* name) {
  return absl::EqualsIgnoreCase({coding.data(), coding.size()}, name);
}

}  // namespace

bool is_read_coding(std::string_view coding) {
  return coding.empty() || equals(coding, "identity") || is_compressed(coding);
}

bool is_compressed(std::string_view coding) {
  return equals(coding, "gzip") || equals(coding, "x-gzip") || equals(coding, "deflate");
}

std::optional<NotInflated> inflate_body(std::string& body, std::size_t max_bytes,
                                        const std::function<bool(std::size_t)>& take_room) {
  Inflater inflater;
  if (!inflater.ok() || body.size() > std::numeric_limits<uInt>::max()) {
    return NotInflated{503, "no memory to inflate the body"};
  }
  z_stream& stream = inflater.stream();
  stream.next_in = reinterpret_cast<Bytef*>(body.data());
  stream.avail_in = static_cast<uInt>(body.size());
  std::string result;
  int state = Z_OK;
  while (state != Z_STREAM_END) {
    const std::size_t before = result.size();
    const std::size_t piece = std::min(kPieceBytes, max_bytes + 1 - before);
    if (!take_room(body.size() + before + piece)) {
      return NotInflated{503, "the bodies of other requests fill this server's memory"};
    }
    result.resize(before + piece);
    stream.next_out = reinterpret_cast<Bytef*>(result.data() + before);
    stream.avail_out = static_cast<uInt>(piece);
    state = inflate(&stream, Z_NO_FLUSH);
    result.resize(before + piece - stream.avail_out);
    if (result.size() > max_bytes) {
      return NotInflated{
          413, fmt::format("the inflated body is longer than the {} bytes allowed", max_bytes)};
    }
    if ((state != Z_OK && state != Z_STREAM_END) ||
        (state == Z_OK && stream.avail_out > 0 && stream.avail_in == 0)) {
      return NotInflated{400, "the body is not what its Content-Encoding says"};
    }
  }
  if (stream.avail_in > 0) {
    return NotInflated{400, "bytes follow the compressed body"};
  }
  body = std::move(result);
  return std::nullopt;
}

}  // namespace tessera
