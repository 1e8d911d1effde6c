#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "server/http/message.h"

namespace tessera {

// Tells a connection that its answer has something new. Any thread, at any time, also when the
// connection is gone; never blocks.
class HttpWaker {
 public:
  virtual ~HttpWaker() = default;
  virtual void wake() = 0;
};

// An answer that takes its time. The connection asks for what is ready, after every wake() and
// after every piece that was sent, and so never has more than one piece in memory. All calls come
// one at a time, on a thread of the listener, and must not block.
class HttpAnswer {
 public:
  // The client has its answer, or has gone: what still runs for it must be cancelled here.
  virtual ~HttpAnswer() = default;

  // The head, with the whole body unless it is `streamed`; nothing while it is not known.
  virtual std::optional<HttpReply> start() = 0;

  // After a streamed head: appends what is ready to `piece`. False: that was the end.
  virtual bool more(std::string& piece) = 0;
};

using HttpResult = std::variant<HttpReply, std::unique_ptr<HttpAnswer>>;

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Called from several threads of the listener at once.
  virtual HttpResult handle(const HttpRequest& request, std::shared_ptr<HttpWaker> waker) = 0;

  // The answer to what never became a request: malformed, too large, too slow. `reason` is text.
  virtual HttpReply refuse(int status, const std::string& reason) = 0;
};

}  // namespace tessera
