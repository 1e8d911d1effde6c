#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace tessera {

// Incremental parser: turns the bytes of a connection into requests, one after another. The result
// does not depend on the pieces in which bytes arrive.
//
// Strict by RFC 9112: a message whose length another server could read differently is refused, so
// that no second request hides in its body. Refused are Transfer-Encoding other than "chunked",
// or in HTTP/1.0, or together with Content-Length; more than one Content-Length; a line folded onto
// the next; a carriage return alone; and HTTP/1.1 without exactly one Host.
class HttpRequestParser {
 public:
  struct Limits {
    std::size_t header_bytes = 0;  // of the head; also of a chunk's line, and of all trailers
    std::size_t body_bytes = 0;
  };

  enum class State {
    head,      // the head of the next request is incomplete
    body,      // the head is complete, the body is not
    complete,  // take() returns the request
    refused,   // see refusal(); nothing more can be read from this connection
  };

  // Reason why the bytes are not a valid request.
  struct Refusal {
    int status = 400;
    std::string reason;
  };

  explicit HttpRequestParser(Limits limits);
  ~HttpRequestParser();

  // Returns: number of bytes consumed. The caller passes the remaining bytes again, followed by new
  // ones, because a line of the head is consumed only as a whole.
  std::size_t feed(std::string_view bytes);

  // The same, but no further than the end of a head, so that nothing of a body is kept before it is
  // admitted.
  std::size_t feed_head(std::string_view bytes);

  State state() const;
  const Refusal& refusal() const;

  // Returns: the request without its body, if nothing of the body was fed. Of one that is refused:
  // method and path, empty if the head could not be read.
  // Requires: state `body`, `complete` or `refused`.
  const HttpRequest& head() const;

  // Returns: the body's bytes, by Content-Length; nothing for a chunked body.
  // Requires: state `body` or `complete`.
  std::optional<std::size_t> content_length() const;

  // Bytes of the body that have arrived.
  std::size_t body_bytes() const;

  // Returns: true if the client waits for "100 Continue" before it sends the body.
  // Requires: state `body`.
  bool expects_continue() const;

  // Returns: the request. The parser then begins the next one.
  // Requires: state `complete`.
  HttpRequest take();

 private:
  struct Parser;
  std::size_t feed(std::string_view bytes, bool only_head);

  std::unique_ptr<Parser> parser_;
};

}  // namespace tessera
