#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "server/http/message.h"

namespace tessera {

// Notifies a connection of new data for its answer. Any thread, at any time, also after the
// connection was destroyed. Never blocks.
class HttpWaker {
 public:
  virtual ~HttpWaker() = default;
  virtual void wake() = 0;
};

// Asynchronous answer. The connection polls it after every wake() and after every piece that was
// sent, so that only one piece is in memory. Calls come one at a time, on a thread of the listener,
// and must not block.
class HttpAnswer {
 public:
  // Called after the answer is complete or the client has disconnected. Must cancel everything that
  // still runs for it.
  virtual ~HttpAnswer() = default;

  // Returns: the head, with the whole body unless it is `streamed`; nothing while it is not ready.
  virtual std::optional<HttpReply> start() = 0;

  // Appends the available data to `piece`.
  // Returns: false at the end of the body.
  // Requires: start() has returned a streamed head.
  virtual bool more(std::string& piece) = 0;
};

using HttpResult = std::variant<HttpReply, std::unique_ptr<HttpAnswer>>;

// Answers the requests of a listener.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Called from several threads of the listener at once.
  virtual HttpResult handle(const HttpRequest& request, std::shared_ptr<HttpWaker> waker) = 0;

  // Returns: the answer to input that is not a request: malformed, too large, too slow. `reason` is
  // text.
  virtual HttpReply refuse(int status, const std::string& reason) = 0;
};

}  // namespace tessera
