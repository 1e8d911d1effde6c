// The reading side of a connection: bytes, heads and bodies, within limits of time and room.
#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "server/http/connection.h"

namespace tessera {

namespace {

namespace asio = boost::asio;

// Time for a probe to send its head, on the connections that are kept for probes.
constexpr std::chrono::seconds kProbeTime{1};

// A client that sends its body at this rate or faster is not cut off, however long it takes.
constexpr std::size_t kLeastBytesPerSecond = 4 << 10;

// Room for a chunked body is taken in pieces of this size.
constexpr std::size_t kRoomBytes = 64 << 10;

// Bytes of one read. A body of megabytes is read in longer pieces: they take half of the CPU time.
constexpr std::size_t kReadBytes = 8 << 10;
constexpr std::size_t kLongReadBytes = 64 << 10;

// A long body is read in bursts with pauses between them. So the two sides of a fast connection do
// not hold cores of the engine for a whole body.
constexpr std::size_t kBurstBytes = 256 << 10;
constexpr std::chrono::milliseconds kPause{2};

}  // namespace

asio::awaitable<void> HttpConnection::read_loop() {
  // Reading pauses while the inbox is full, with requests that are pipelined during an answer.
  const std::size_t limit = args_.options.header_bytes + kHttpSentAheadBytes;
  asio::steady_timer pause(limit_timer_.get_executor());
  std::size_t burst = 0;  // bytes of long reads since the last pause
  while (!closed_) {
    if (burst >= kBurstBytes) {
      burst = 0;
      pause.expires_after(kPause);
      co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
      continue;
    }
    if (!discard_ && inbox_.size() >= limit) {
      co_await room_.wait();
      continue;
    }
    size_buffer();
    const std::size_t n = co_await args_.transport->read(buffer_);
    burst += buffer_.size() == kLongReadBytes ? n : 0;
    if (n == 0) {
      break;
    }
    if (!discard_) {
      inbox_.append(buffer_.data(), n);
    }
    changed_.notify();
  }
  peer_gone_ = true;
  if (streaming_) {
    close();  // a write may be waiting for the client to read
  }
  changed_.notify();
}

// Long reads take place while room for the body is held, which counts them.
void HttpConnection::size_buffer() {
  const bool in_body =
      room_for_body_.bytes() > 0 && parser_.state() == HttpRequestParser::State::body &&
      parser_.content_length().value_or(0) > parser_.body_bytes() + inbox_.size() + kLongReadBytes;
  const std::size_t bytes = in_body ? kLongReadBytes : kReadBytes;
  if (buffer_.size() != bytes) {
    std::vector<char>(bytes).swap(buffer_);
  }
}

void HttpConnection::parse(bool only_head) {
  inbox_.erase(0, only_head ? parser_.feed_head(inbox_) : parser_.feed(inbox_));
  if (inbox_.empty() && inbox_.capacity() >= kLongReadBytes && buffer_.size() == kReadBytes) {
    std::string().swap(inbox_);
  }
  room_.notify();
}

// Waits until a head is complete, refused or late, or until the connection ends.
asio::awaitable<HttpConnection::Received> HttpConnection::read_head() {
  using State = HttpRequestParser::State;
  const HttpOptions& options = args_.options;
  const auto begin_time =
      args_.probes_only ? std::min<std::chrono::milliseconds>(kProbeTime, options.header_timeout)
                        : options.header_timeout;
  Clock::time_point deadline =
      Clock::now() + (args_.probes_only ? begin_time : options.idle_timeout);
  bool began = false;
  while (true) {
    if (!began && !inbox_.empty()) {
      began = true;
      deadline = Clock::now() + begin_time;
    }
    parse(/*only_head=*/true);
    if (parser_.state() == State::refused) {
      co_return Received::refused;
    }
    if (parser_.state() != State::head) {
      co_return Received::request;
    }
    if (peer_gone_ || (finishing_ && !began)) {
      co_return Received::nothing;
    }
    if (Clock::now() >= deadline) {
      co_return began ? Received::timed_out : Received::nothing;
    }
    co_await changed_.wait(deadline);
  }
}

// Takes room for the whole body and for reading it, or for the next part of a chunked one.
bool HttpConnection::take_room() {
  const std::optional<std::size_t> length = parser_.content_length();
  const std::size_t chunked = (parser_.body_bytes() + inbox_.size()) / kRoomBytes * kRoomBytes;
  const std::size_t reading = length.value_or(0) > kLongReadBytes ? 2 * kLongReadBytes : 0;
  const std::size_t wanted = length.value_or(chunked + kRoomBytes) + reading;
  if (room_for_body_.bytes() > 0) {
    return room_for_body_.grow_to(wanted);
  }
  std::optional<ByteBudget::Share> share = args_.work.budget.take(wanted);
  if (share) {
    room_for_body_ = *std::move(share);
  }
  return share.has_value();
}

// The same for the body.
asio::awaitable<HttpConnection::Received> HttpConnection::read_body() {
  using State = HttpRequestParser::State;
  const Clock::time_point begin = Clock::now() + args_.options.body_timeout;
  bool told = false;
  while (parser_.state() == State::body) {
    if (!take_room()) {
      co_return Received::no_room;
    }
    const bool waits = !std::exchange(told, true) && parser_.expects_continue() && inbox_.empty();
    if (waits) {
      const bool written = co_await write("HTTP/1.1 100 Continue\r\n\r\n");
      if (!written) {
        co_return Received::nothing;
      }
    }
    parse(/*only_head=*/false);
    if (parser_.state() != State::body) {
      break;
    }
    const Clock::time_point deadline =
        begin + std::chrono::seconds(parser_.body_bytes() / kLeastBytesPerSecond);
    if (peer_gone_) {
      co_return Received::nothing;
    }
    if (Clock::now() >= deadline) {
      co_return Received::timed_out;
    }
    co_await changed_.wait(deadline);
  }
  co_return parser_.state() == State::refused ? Received::refused : Received::request;
}

}  // namespace tessera
