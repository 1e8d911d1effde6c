#include "server/http/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "server/http/endpoints.h"
#include "server/openai/error.h"
#include "server/service.h"
#include "server/web/chat_page.h"

namespace tessera {

namespace {

using Endpoint = HttpResult (*)(const EndpointContext&);

struct Route {
  std::string_view path;  // a path that ends in '/' matches as a prefix
  std::string_view method;
  Endpoint endpoint;
  bool open = false;  // needs no key
};

constexpr Route kRoutes[] = {
    {"/health", "GET", answer_health, true},
    {"/metrics", "GET", answer_metrics, true},
    {"/v1/models", "GET", answer_models},
    {"/v1/models/", "GET", answer_model},
    {"/v1/completions", "POST", answer_completions},
    {"/v1/chat/completions", "POST", answer_chat_completions},
    {"/v1/cache", "GET", answer_cache},
    {"/v1/cache/flush", "POST", answer_cache_flush},
    {"/tokenize", "POST", answer_tokenize},
    {"/detokenize", "POST", answer_detokenize},
};

constexpr std::string_view kPage = "/";
constexpr std::string_view kVersion = "/version";

const Route* find_route(std::string_view path) {
  const auto* route = std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) {
    return r.path.ends_with('/') ? path.size() > r.path.size() && path.starts_with(r.path)
                                 : path == r.path;
  });
  return route == std::end(kRoutes) ? nullptr : route;
}

// Returns: true if the browser reports (Sec-Fetch-Site) that a page of another origin sent this.
bool from_elsewhere(const HttpRequest& request) {
  const std::string_view site = request.header("sec-fetch-site");
  return !site.empty() && site != "none" && site != "same-origin";
}

// Answer to a request without a valid key. `page`: a Basic challenge, for which a browser asks its
// user for the key. Otherwise: OpenAI's error.
HttpReply locked_reply(bool page) {
  HttpReply reply = error_reply(with_code(
      absl::UnauthenticatedError("no valid API key: send it as 'Authorization: Bearer KEY'"),
      "invalid_api_key"));
  if (page) {
    reply.content_type = "text/plain; charset=utf-8";
    reply.headers = {{"WWW-Authenticate", "Basic realm=\"the API key is the password\""}};
    reply.body = "This server requires an API key as the password; any user name is accepted.\n";
  }
  return reply;
}

HttpReply page_reply() {
  HttpReply reply;
  reply.content_type = "text/html; charset=utf-8";
  reply.body = chat_page();
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
  const bool cors = !options_.cors_origin.empty();
  HttpResult result = cors && request.method == "OPTIONS" ? HttpResult(preflight_reply(request))
                                                          : dispatch(request, std::move(waker));
  if (!cors) {
    return result;
  }
  HttpHeaders headers = cors_headers(options_.cors_origin);
  if (auto* reply = std::get_if<HttpReply>(&result)) {
    reply->headers.insert(reply->headers.end(), headers.begin(), headers.end());
    return result;
  }
  return std::make_unique<WithHeaders>(std::move(std::get<std::unique_ptr<HttpAnswer>>(result)),
                                       std::move(headers));
}

HttpResult Routes::dispatch(const HttpRequest& request, std::shared_ptr<HttpWaker> waker) {
  const bool page = request.path == kPage;
  const Route* route = find_route(request.path);
  const bool open = route != nullptr && route->open;
  if (!open && !options_.api_keys.open(request.header("authorization"),
                                       /*basic_too=*/page || !from_elsewhere(request))) {
    return locked_reply(page);
  }
  if (page || request.path == kVersion) {
    if (!allows("GET", request.method)) {
      return method_reply(request.method, request.path, "GET");
    }
    return page ? page_reply() : json_reply(fmt::format("{{\"version\":\"{}\"}}", TESSERA_VERSION));
  }
  if (route == nullptr) {
    return error_reply(absl::NotFoundError(fmt::format("there is nothing at {}", request.path)));
  }
  if (!allows(route->method, request.method)) {
    return method_reply(request.method, request.path, route->method);
  }
  Service* service = service_;
  if (service == nullptr) {
    return error_reply(absl::UnavailableError("the model is being loaded"));
  }
  return route->endpoint(
      {.request = request,
       .rest =
           std::string_view(request.path).substr(std::min(route->path.size(), request.path.size())),
       .service = *service,
       .waker = std::move(waker),
       .max_choices = options_.max_choices,
       .started = started_});
}

HttpReply Routes::refuse(int status, const std::string& reason) {
  HttpReply reply = error_reply(absl::InvalidArgumentError(reason));
  reply.status = status;
  return reply;
}

}  // namespace tessera
