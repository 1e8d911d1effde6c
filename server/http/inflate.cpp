#include "server/http/inflate.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"

namespace tessera {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;
constexpr int kWindowBits = 15 + 32;  // the largest window; gzip or zlib, by the header

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

// zlib's state of one body.
struct BodyInflater::State {
  State() { ok = inflateInit2(&stream, kWindowBits) == Z_OK; }
  ~State() { inflateEnd(&stream); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  z_stream stream{};
  bool ok = false;
};

BodyInflater::BodyInflater(std::string& body, std::size_t max_bytes,
                           std::function<bool(std::size_t)> take_room)
    : body_(body),
      max_bytes_(max_bytes),
      take_room_(std::move(take_room)),
      state_(std::make_unique<State>()) {}

BodyInflater::~BodyInflater() = default;

bool BodyInflater::refuse(int status, std::string reason) {
  refusal_ = NotInflated{status, std::move(reason)};
  return true;
}

bool BodyInflater::step(std::size_t bytes) {
  z_stream& stream = state_->stream;
  if (stream.next_in == nullptr) {
    if (!state_->ok || body_.size() > std::numeric_limits<uInt>::max()) {
      return refuse(503, "no memory to inflate the body");
    }
    stream.next_in = reinterpret_cast<Bytef*>(body_.data());
    stream.avail_in = static_cast<uInt>(body_.size());
  }
  const std::size_t end = result_.size() + bytes;
  while (result_.size() < end) {
    const std::size_t before = result_.size();
    const std::size_t piece = std::min({kPieceBytes, max_bytes_ + 1 - before, end - before});
    if (!take_room_(body_.size() + before + piece)) {
      return refuse(503, "the bodies of other requests fill this server's memory");
    }
    result_.resize(before + piece);
    stream.next_out = reinterpret_cast<Bytef*>(result_.data() + before);
    stream.avail_out = static_cast<uInt>(piece);
    const int state = inflate(&stream, Z_NO_FLUSH);
    result_.resize(before + piece - stream.avail_out);
    if (result_.size() > max_bytes_) {
      return refuse(
          413, fmt::format("the inflated body is longer than the {} bytes allowed", max_bytes_));
    }
    if (state == Z_STREAM_END && stream.avail_in > 0) {
      return refuse(400, "bytes follow the compressed body");
    }
    if (state == Z_STREAM_END) {
      body_ = std::move(result_);
      return true;
    }
    if (state != Z_OK || (stream.avail_out > 0 && stream.avail_in == 0)) {
      return refuse(400, "the body is not what its Content-Encoding says");
    }
  }
  return false;
}

}  // namespace tessera
