#include "server/http/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/check.h"
#include "server/http/origin_check.h"
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
  std::size_t start_bytes() const override { return answer_->start_bytes(); }
  std::size_t more_bytes() const override { return answer_->more_bytes(); }
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

std::optional<std::string> Routes::key_of(const HttpRequest& head, Access access) const {
  if (access == Access::open) {
    return std::string();
  }
  const std::string_view site = head.header("sec-fetch-site");
  const bool own_page = site.empty() || site == "none" || site == "same-origin";
  return options_.api_keys.name_of(head.header("authorization"),
                                   /*basic_too=*/access == Access::page || own_page);
}

// Without a key, what protects a server is that only its own machine reaches it. A web page in a
// browser there must not.
absl::Status Routes::check_origin(const HttpRequest& head, Access access) const {
  const std::string_view host = head.header("host");
  const bool locked = options_.api_keys.locked();
  const bool named = options_.allowed_hosts.empty()
                         ? locked || !options_.loopback || host.empty() || is_loopback(host)
                         : is_listed(host, options_.allowed_hosts);
  if (!named && access != Access::open) {
    return absl::PermissionDeniedError(
        "the Host of this request is not a name of this server: see --allowed-hosts");
  }
  if (!locked && head.method != "GET" && head.method != "HEAD" &&
      from_elsewhere(head, options_.cors_origin)) {
    return absl::PermissionDeniedError(
        "a web page of another site sent this request: see --cors-origin");
  }
  return absl::OkStatus();
}

std::variant<HttpAdmission, HttpReply> Routes::admit(const HttpRequest& head) {
  if (!options_.cors_origin.empty() && head.method == "OPTIONS") {
    return shown(preflight_reply(head));
  }
  const Route* route = find_route(head.path);
  // A path that is not known needs a key too, so as not to reveal which paths exist.
  const Access access = route == nullptr ? Access::key : route->access;
  if (const absl::Status status = check_origin(head, access); !status.ok()) {
    return shown(error_reply(status));
  }
  std::optional<std::string> key = key_of(head, access);
  if (!key) {
    return shown(locked_reply(access));
  }
  if (route == nullptr) {
    return shown(
        error_reply(absl::NotFoundError(fmt::format("there is nothing at {}", head.path))));
  }
  if (!allows(route->method, head.method)) {
    return shown(method_reply(head.method, head.path, route->method));
  }
  if (std::holds_alternative<ModelEndpoint>(route->endpoint) && service_ == nullptr) {
    return shown(error_reply(absl::UnavailableError("the model is being loaded")));
  }
  return HttpAdmission{.key_name = *std::move(key),
                       .probe = access == Access::open,
                       .pooled = route->work == Work::grows};
}

// Returns: the reply, with the headers that allow pages of the CORS origin to read it.
HttpReply Routes::shown(HttpReply reply) const {
  if (!options_.cors_origin.empty()) {
    const HttpHeaders headers = cors_headers(options_.cors_origin);
    reply.headers.insert(reply.headers.end(), headers.begin(), headers.end());
  }
  return reply;
}

HttpResult Routes::handle(const HttpRequest& request, std::shared_ptr<HttpWaker> waker) {
  HttpResult result = dispatch(request, std::move(waker));
  if (auto* reply = std::get_if<HttpReply>(&result)) {
    return shown(std::move(*reply));
  }
  if (options_.cors_origin.empty()) {
    return result;
  }
  return std::make_unique<WithHeaders>(std::move(std::get<std::unique_ptr<HttpAnswer>>(result)),
                                       cors_headers(options_.cors_origin));
}

HttpResult Routes::dispatch(const HttpRequest& request, std::shared_ptr<HttpWaker> waker) {
  const Route* route = find_route(request.path);
  TESSERA_CHECK(route != nullptr, "a request that was admitted has a route");
  if (const auto* plain = std::get_if<PlainEndpoint>(&route->endpoint)) {
    return (*plain)();
  }
  return std::get<ModelEndpoint>(route->endpoint)(
      {.request = request,
       .rest = std::string_view(request.path).substr(fixed_part(*route).size()),
       .service = *service_,
       .waker = std::move(waker),
       .max_choices = options_.max_choices,
       .started = started_});
}

HttpReply Routes::refuse(int status, const std::string& reason) {
  HttpReply reply = error_reply(status == 503 ? absl::UnavailableError(reason)
                                              : absl::InvalidArgumentError(reason));
  reply.status = status;
  return reply;
}

}  // namespace tessera
