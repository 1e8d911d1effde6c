#include "server/http/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "server/access_log.h"
#include "server/http/replies.h"
#include "server/http/route_table.h"
#include "server/openai/error.h"

namespace tessera {

namespace {

// Returns: the route's path without its '*'.
std::string_view fixed_part(const Route& route) {
  return route.path.substr(0, route.path.size() - (route.path.ends_with('*') ? 1 : 0));
}

const Route* find_route(std::string_view path) {
  const auto* route = std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) {
    const std::string_view fixed = fixed_part(r);
    return fixed == r.path ? path == fixed : path.size() > fixed.size() && path.starts_with(fixed);
  });
  return route == std::end(kRoutes) ? nullptr : route;
}

// Returns: true if the browser reports (Sec-Fetch-Site) that a page of another origin sent this.
bool from_elsewhere(const HttpRequest& request) {
  const std::string_view site = request.header("sec-fetch-site");
  return !site.empty() && site != "none" && site != "same-origin";
}

// Answer to a request without a valid key: OpenAI's error, or for a page a Basic challenge, for
// which a browser asks its user for the key.
HttpReply locked_reply(Access access) {
  HttpReply reply = error_reply(with_code(
      absl::UnauthenticatedError("no valid API key: send it as 'Authorization: Bearer KEY'"),
      "invalid_api_key"));
  if (access == Access::page) {
    reply.content_type = "text/plain; charset=utf-8";
    reply.headers = {{"WWW-Authenticate", "Basic realm=\"the API key is the password\""}};
    reply.body = "This server requires an API key as the password; any user name is accepted.\n";
  }
  return reply;
}

HttpReply method_reply(std::string_view method, std::string_view path, std::string_view allowed) {
  HttpReply reply = error_reply(
      absl::InvalidArgumentError(fmt::format("{} answers {}, not {}", path, allowed, method)));
  reply.status = 405;
  reply.headers.emplace_back("Allow", allowed == "GET" ? "GET, HEAD" : std::string(allowed));
  return reply;
}

bool allows(std::string_view allowed, std::string_view method) {
  return method == allowed || (allowed == "GET" && method == "HEAD");
}

// Adds headers to an answer.
class WithHeaders final : public HttpAnswer {
 public:
  WithHeaders(std::unique_ptr<HttpAnswer> answer, HttpHeaders headers)
      : answer_(std::move(answer)), headers_(std::move(headers)) {}

  std::optional<HttpReply> start() override {
    std::optional<HttpReply> reply = answer_->start();
    if (reply) {
      reply->headers.insert(reply->headers.end(), headers_.begin(), headers_.end());
    }
    return reply;
  }
  bool more(std::string& piece) override { return answer_->more(piece); }

 private:
  std::unique_ptr<HttpAnswer> answer_;
  HttpHeaders headers_;
};

// Adds headers to a result.
HttpResult with_headers(HttpResult result, HttpHeaders headers) {
  if (auto* reply = std::get_if<HttpReply>(&result)) {
    reply->headers.insert(reply->headers.end(), headers.begin(), headers.end());
    return result;
  }
  return std::make_unique<WithHeaders>(std::move(std::get<std::unique_ptr<HttpAnswer>>(result)),
                                       std::move(headers));
}

// Logs the end of an answer.
class Logged final : public HttpAnswer {
 public:
  Logged(std::unique_ptr<HttpAnswer> answer, std::shared_ptr<const RequestRecord> record)
      : answer_(std::move(answer)), record_(std::move(record)) {}
  ~Logged() override {
    log_access(*record_, status_ > 0 ? fmt::format("{}", status_) : "499", complete_);
  }

  std::optional<HttpReply> start() override {
    std::optional<HttpReply> reply = answer_->start();
    if (reply) {
      status_ = reply->status;
      complete_ = !reply->streamed;
    }
    return reply;
  }
  bool more(std::string& piece) override {
    const bool going = answer_->more(piece);
    complete_ = !going;
    return going;
  }

 private:
  std::unique_ptr<HttpAnswer> answer_;
  std::shared_ptr<const RequestRecord> record_;
  int status_ = 0;
  bool complete_ = false;
};

// Returns: the headers that allow pages of `origin` to read an answer.
HttpHeaders cors_headers(const std::string& origin) {
  HttpHeaders headers = {{"Access-Control-Allow-Origin", origin}};
  if (origin != "*") {
    headers.emplace_back("Vary", "Origin");
  }
  return headers;
}

HttpReply preflight_reply(const HttpRequest& request) {
  const std::string_view wanted = request.header("access-control-request-headers");
  HttpReply reply;
  reply.status = 204;
  reply.headers = {{"Access-Control-Allow-Methods", "GET, POST"},
                   {"Access-Control-Allow-Headers",
                    wanted.empty() ? "Authorization, Content-Type" : std::string(wanted)},
                   {"Access-Control-Max-Age", "86400"}};
  return reply;
}

}  // namespace

Routes::Routes(RoutesOptions options)
    : options_(std::move(options)),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

void Routes::attach(Service& service) {
  service_ = &service;
}

HttpResult Routes::handle(const HttpRequest& request, std::shared_ptr<HttpWaker> waker) {
  auto record = std::make_shared<RequestRecord>();
  record->id = request_id_of(request.header("x-request-id"));
  record->method = request.method;
  record->path = request.path;
  HttpResult result =
      with_headers(handle_cors(request, std::move(waker), record), {{"x-request-id", record->id}});
  if (const auto* reply = std::get_if<HttpReply>(&result)) {
    log_access(*record, fmt::format("{}", reply->status), true);
    return result;
  }
  return std::make_unique<Logged>(std::move(std::get<std::unique_ptr<HttpAnswer>>(result)),
                                  std::move(record));
}

HttpResult Routes::handle_cors(const HttpRequest& request, std::shared_ptr<HttpWaker> waker,
                               const std::shared_ptr<RequestRecord>& record) {
  if (options_.cors_origin.empty()) {
    return dispatch(request, std::move(waker), record);
  }
  return with_headers(request.method == "OPTIONS" ? HttpResult(preflight_reply(request))
                                                  : dispatch(request, std::move(waker), record),
                      cors_headers(options_.cors_origin));
}

// Returns: null if the request needs a key and has none. A request to an open route need not have
// one.
std::shared_ptr<const Caller> Routes::caller_of(const HttpRequest& request, Access access) const {
  return options_.api_keys.find(request.header("authorization"),
                                /*basic_too=*/access == Access::page || !from_elsewhere(request));
}

HttpResult Routes::dispatch(const HttpRequest& request, std::shared_ptr<HttpWaker> waker,
                            const std::shared_ptr<RequestRecord>& record) {
  const Route* route = find_route(request.path);
  // A path that is not known needs a key too, so as not to reveal which paths exist.
  const Access access = route == nullptr ? Access::key : route->access;
  const std::shared_ptr<const Caller> caller = caller_of(request, access);
  if (caller != nullptr) {
    record->set_caller(*caller);
  } else if (access != Access::open) {
    return locked_reply(access);
  }
  if (access == Access::admin && !caller->admin) {
    return error_reply(absl::PermissionDeniedError(
        fmt::format("{} is for keys with the right 'admin'", request.path)));
  }
  if (route == nullptr) {
    return error_reply(absl::NotFoundError(fmt::format("there is nothing at {}", request.path)));
  }
  if (!allows(route->method, request.method)) {
    return method_reply(request.method, request.path, route->method);
  }
  if (const auto* plain = std::get_if<PlainEndpoint>(&route->endpoint)) {
    return (*plain)();
  }
  Service* service = service_;
  if (service == nullptr) {
    return error_reply(absl::UnavailableError("the model is being loaded"));
  }
  return std::get<ModelEndpoint>(route->endpoint)(
      {.request = request,
       .rest = std::string_view(request.path).substr(fixed_part(*route).size()),
       .service = *service,
       .waker = std::move(waker),
       .caller = caller,
       .record = record,
       .max_choices = options_.max_choices,
       .started = started_});
}

HttpReply Routes::refuse(int status, const std::string& reason) {
  HttpReply reply = error_reply(absl::InvalidArgumentError(reason));
  reply.status = status;
  return reply;
}

}  // namespace tessera
