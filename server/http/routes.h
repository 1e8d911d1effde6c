#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "server/api_keys.h"
#include "server/http/handler.h"

namespace tessera {

class Service;

struct RoutesOptions {
  // Any of them opens every route, as `Authorization: Bearer KEY`; /health and /metrics need none.
  // A browser is asked for one at the chat page (HTTP's Basic challenge: the key is the password)
  // and sends it with the page's own requests until it is closed; with those of pages from
  // elsewhere that does not count.
  ApiKeys api_keys{};
  std::string cors_origin{};  // "*" or the one origin whose pages may call the API; empty: none
  int32_t max_choices = 64;   // prompts times n of one request
};

// The HTTP API: OpenAI's endpoints, /tokenize, /detokenize, /health, /metrics, /version and the
// chat page at `/`. Until attach(), what needs the model is 503.
class Routes final : public HttpHandler {
 public:
  explicit Routes(RoutesOptions options);

  // The model is loaded. Any thread, once. `service` must outlive the listener's connections.
  void attach(Service& service);

  HttpResult handle(const HttpRequest& request, std::shared_ptr<HttpWaker> waker) override;
  HttpReply refuse(int status, const std::string& reason) override;

 private:
  HttpResult dispatch(const HttpRequest& request, std::shared_ptr<HttpWaker> waker);

  RoutesOptions options_;
  int64_t started_;  // seconds of the Unix epoch
  std::atomic<Service*> service_ = nullptr;
};

}  // namespace tessera
