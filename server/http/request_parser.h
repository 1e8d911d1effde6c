#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace tessera {

// Turns the bytes of a connection into requests, one after another, whatever pieces they come in.
class HttpRequestParser {
 public:
  struct Limits {
    std::size_t header_bytes = 0;
    std::size_t body_bytes = 0;
  };

  enum class State {
    head,      // of the next request: some of it is missing
    body,      // the head is known, some of the body is missing
    complete,  // take() it
    refused,   // refusal() says why; nothing more can be read from this connection
  };

  // Why no request could be made of the bytes.
  struct Refusal {
    int status = 400;
    std::string reason;
  };

  explicit HttpRequestParser(Limits limits);
  ~HttpRequestParser();

  // Reads what it can use and returns how many bytes that was. What is left must be offered again,
  // with what follows it: a head's line is used only as a whole.
  std::size_t feed(std::string_view bytes);

  State state() const;
  const Refusal& refusal() const;

  // Whether the client waits for "100 Continue" before it sends the body. In state `body`.
  bool expects_continue() const;

  // The request; the parser begins the next one. Requires: state `complete`.
  HttpRequest take();

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace tessera
