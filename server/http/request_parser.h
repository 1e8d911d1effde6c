#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace tessera {

// Incremental parser: turns the bytes of a connection into requests, one after another. The result
// does not depend on the pieces in which bytes arrive.
class HttpRequestParser {
 public:
  struct Limits {
    std::size_t header_bytes = 0;
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

  State state() const;
  const Refusal& refusal() const;

  // Returns: true if the client waits for "100 Continue" before it sends the body.
  // Requires: state `body`.
  bool expects_continue() const;

  // Returns: the request. The parser then begins the next one.
  // Requires: state `complete`.
  HttpRequest take();

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace tessera
