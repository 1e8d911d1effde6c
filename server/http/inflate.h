#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Content codings of a request's body.

// Returns: true if a body of this Content-Encoding is read: as it is, gzip, or deflate.
bool is_read_coding(std::string_view coding);

// Returns: true if the body is compressed. Requires: is_read_coding.
bool is_compressed(std::string_view coding);

// The reason that a compressed body is refused, with the HTTP status.
struct NotInflated {
  int status = 400;
  std::string reason;
};

// Inflates a body of the coding gzip (RFC 1952) or deflate (RFC 1950), in steps of bounded time.
class BodyInflater {
 public:
  // body: compressed; must outlive this. take_room: called with the bytes of both forms before the
  // result grows; false if no memory is left for them.
  BodyInflater(std::string& body, std::size_t max_bytes,
               std::function<bool(std::size_t)> take_room);
  ~BodyInflater();
  BodyInflater(const BodyInflater&) = delete;
  BodyInflater& operator=(const BodyInflater&) = delete;

  // Inflates at most `bytes` more, in time proportional to them.
  // Returns: true if nothing is left to do: the body is inflated, or refused.
  bool step(std::size_t bytes);

  // The reason that the body is refused; nothing if it is not.
  const std::optional<NotInflated>& refusal() const { return refusal_; }

 private:
  struct State;

  bool refuse(int status, std::string reason);

  std::string& body_;
  const std::size_t max_bytes_;
  const std::function<bool(std::size_t)> take_room_;
  std::unique_ptr<State> state_;
  std::string result_;
  std::optional<NotInflated> refusal_;
};

}  // namespace tessera
