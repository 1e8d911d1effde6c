#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "server/base/waker.h"
#include "server/http/message.h"

namespace tessera {

struct Caller;
struct RequestRecord;
struct Route;

// Asynchronous answer. The connection polls it after every wake() and after every piece that was
// sent, so that only one piece is in memory. Calls come one at a time and must not block.
class HttpAnswer {
 public:
  // Called after the answer is complete or the client has disconnected. Must cancel everything that
  // still runs for it.
  virtual ~HttpAnswer() = default;

  // Returns: the head, with the whole body unless it is `streamed`; nothing while it is not ready.
  virtual std::optional<HttpReply> start() = 0;

  // Returns: about how many bytes start() prints, if they grow with the request. It then runs on
  // the work pool. 0: a constant amount of work, done on a thread of the listener.
  virtual std::size_t start_bytes() const { return 0; }

  // Returns: the same of the next more().
  virtual std::size_t more_bytes() const { return 0; }

  // Asks for a sign of life, because the client has got nothing for HttpOptions::ping_interval:
  // clients and proxies give up. The next start() of a stream then returns the head, and the next
  // more() appends a ping if there is nothing else. A whole answer has none.
  virtual void ping() {}

  // Appends the available data to `piece`, of bounded size but for more_bytes().
  // Returns: false at the end of the body.
  // Requires: start() has returned a streamed head.
  virtual bool more(std::string& piece) = 0;
};

using HttpResult = std::variant<HttpReply, std::unique_ptr<HttpAnswer>>;

// Decision on the head of a request: the rest is read and answered.
struct HttpAdmission {
  std::string key_name;  // whose requests share turns (Caller::turn_name); empty without keys
  std::shared_ptr<const Caller> caller;   // null for a probe without a key
  std::shared_ptr<RequestRecord> record;  // for the access log
  const Route* route = nullptr;           // of a request that is handled; the handler's own
  bool probe = false;   // needs no key: answered on the connections that are kept for probes too
  bool pooled = false;  // handle() does work that grows with the body, so it runs on the work pool
};

// Answers the requests of a listener.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Decides by the head alone, before the body is read. Called from several threads of the listener
  // at once, as handle() is.
  // Returns: the reply to a request that is refused, or answered by its head. Its body is not kept.
  virtual std::variant<HttpAdmission, HttpReply> admit(const HttpRequest& head) = 0;

  // Answers a request that was admitted.
  virtual HttpResult handle(const HttpRequest& request, const HttpAdmission& admission,
                            std::shared_ptr<Waker> waker) = 0;

  // Returns: the answer to input that is not a request: malformed, too large, too slow. `reason` is
  // text. `admission`: of its head; empty if that was not admitted. `path`: then that of its head,
  // empty if it could not be read.
  virtual HttpReply refuse(int status, const std::string& reason, std::string_view path,
                           const HttpAdmission& admission) = 0;
};

}  // namespace tessera
