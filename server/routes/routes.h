#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "server/http/handler.h"
#include "server/responses/response_store.h"
#include "server/tenants/api_keys.h"

namespace tessera {

enum class Access : uint8_t;
class Service;
struct RequestRecord;

struct RoutesOptions {
  // Any of these keys authorizes every route, as `Authorization: Bearer KEY`; some routes need none
  // (Route::access). The chat page sends HTTP's Basic challenge, with the key as the password. The
  // browser then sends the key with the page's own requests until it is closed. Basic credentials
  // are ignored in API requests of pages from other origins.
  ApiKeys api_keys{};
  std::string cors_origin{};  // "*" or the one origin whose pages may call the API; empty: none
  int32_t max_choices = 64;   // limit of prompts times n of one request
  // Names by which clients may address the server (the Host of a request), separated by commas.
  // Empty: without keys on a loopback address, those of the machine itself; otherwise all.
  std::string allowed_hosts{};
  bool loopback = true;                     // the listener's address is a loopback address
  std::size_t response_store = 64U << 20U;  // bytes; 0: responses are not stored
  bool lenient = false;  // unknown fields of a body are left out with a warning, not refused
};

// HTTP API: dispatches to the routes of server/routes/route_table.h. Until attach(), endpoints that
// need the model return 503. Every answer has the header x-request-id, from the client or new, and
// its end is logged (access_log.h).
class Routes final : public HttpHandler {
 public:
  explicit Routes(RoutesOptions options);

  // Called once when the model is loaded, on any thread. `service` must outlive the listener's
  // connections.
  void attach(Service& service);

  std::variant<HttpAdmission, HttpReply> admit(const HttpRequest& head) override;
  HttpResult handle(const HttpRequest& request, const HttpAdmission& admission,
                    std::shared_ptr<Waker> waker) override;
  HttpReply refuse(int status, const std::string& reason, std::string_view path,
                   const HttpAdmission& admission) override;

 private:
  std::shared_ptr<const Caller> caller_of(const HttpRequest& head, Access access) const;
  absl::Status check_origin(const HttpRequest& head, Access access) const;
  std::optional<HttpReply> decide(const HttpRequest& head, HttpAdmission& admission) const;
  HttpHeaders headers_of(const RequestRecord& record) const;
  HttpReply logged(HttpReply reply, const RequestRecord& record) const;
  HttpResult dispatch(const HttpRequest& request, const HttpAdmission& admission,
                      std::shared_ptr<Waker> waker);

  RoutesOptions options_;
  std::shared_ptr<ResponseStore> responses_;
  int64_t started_;  // seconds of the Unix epoch
  std::atomic<Service*> service_ = nullptr;
};

}  // namespace tessera
