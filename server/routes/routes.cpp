#include "server/routes/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "server/base/error.h"
#include "server/base/memory_guard.h"
#include "server/generation/service.h"
#include "server/http/origin_check.h"
#include "server/json/lenient_fields.h"
#include "server/json/print_json.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"
#include "server/telemetry/access_log.h"

namespace tessera {

namespace {

// Returns: the route's path without its '*'.
std::string_view fixed_part(const Route& route) {
  return route.path.substr(0, route.path.size() - (route.path.ends_with('*') ? 1 : 0));
}

bool has_path(const Route& route, std::string_view path) {
  const std::string_view fixed = fixed_part(route);
  return fixed == route.path ? path == fixed
                             : path.size() > fixed.size() && path.starts_with(fixed);
}

bool allows(std::string_view allowed, std::string_view method) {
  return method == allowed || (allowed == "GET" && method == "HEAD");
}

// Returns: the route of this path and method, else one of the path with another method, or null.
const Route* find_route(std::string_view path, std::string_view method) {
  const Route* found = nullptr;
  for (const Route& route : kRoutes) {
    if (has_path(route, path)) {
      if (allows(route.method, method)) {
        return &route;
      }
      found = found == nullptr ? &route : found;
    }
  }
  return found;
}

// Returns: the methods of a path: "GET, HEAD, DELETE".
std::string methods_of(std::string_view path) {
  std::string methods;
  for (const Route& route : kRoutes) {
    if (has_path(route, path)) {
      methods += methods.empty() ? "" : ", ";
      methods += route.method == "GET" ? "GET, HEAD" : route.method;
    }
  }
  return methods;
}

// Answer to a request without a valid key: an error, or for a page a Basic challenge, for which a
// browser asks its user for the key.
HttpReply locked_reply(std::string_view path, Access access) {
  const absl::Status status = absl::UnauthenticatedError(
      "no valid API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'");
  HttpReply reply = error_reply_at(path, with_code(status, "invalid_api_key"));
  if (access == Access::page) {
    reply.content_type = "text/plain; charset=utf-8";
    reply.headers = {{"WWW-Authenticate", "Basic realm=\"the API key is the password\""}};
    reply.body = "This server requires an API key as the password; any user name is accepted.\n";
  }
  return reply;
}

HttpReply method_reply(std::string_view method, std::string_view path) {
  const std::string allowed = methods_of(path);
  const std::string error = fmt::format("{} answers {}, not {}", path, allowed, method);
  HttpReply reply = error_reply_at(path, absl::InvalidArgumentError(error), 405);
  reply.headers.emplace_back("Allow", allowed);
  return reply;
}

HttpReply nowhere_reply(std::string_view path) {
  const std::string_view hint =
      is_of_messages(path)
          ? ": of Anthropic's messages, this server has /v1/messages and /v1/messages/count_tokens"
          : "";
  return error_reply_at(path,
                        absl::NotFoundError(fmt::format("there is nothing at {}{}", path, hint)));
}

// Adds headers to an answer, and logs its end.
// Adds the header that names the parts of a body which were left out.
void add_warning(const RequestRecord& record, HttpHeaders& headers) {
  if (!record.warning.empty()) {
    headers.emplace_back("Warning", fmt::format("299 - \"{}\"", record.warning));
  }
}

class LoggedAnswer final : public HttpAnswer {
 public:
  LoggedAnswer(std::unique_ptr<HttpAnswer> answer, HttpHeaders headers,
               std::shared_ptr<const RequestRecord> record)
      : answer_(std::move(answer)), headers_(std::move(headers)), record_(std::move(record)) {}
  ~LoggedAnswer() override {
    log_access(*record_, status_ > 0 ? fmt::format("{}", status_) : kLeft, complete_);
  }

  std::optional<HttpReply> start() override {
    std::optional<HttpReply> reply = answer_->start();
    if (reply) {
      status_ = reply->status;
      complete_ = !reply->streamed;
      reply->headers.insert(reply->headers.end(), headers_.begin(), headers_.end());
      add_warning(*record_, reply->headers);  // the start may have left out more
    }
    return reply;
  }
  std::size_t start_bytes() const override { return answer_->start_bytes(); }
  std::size_t more_bytes() const override { return answer_->more_bytes(); }
  void ping() override { answer_->ping(); }
  bool more(std::string& piece) override {
    const bool going = answer_->more(piece);
    complete_ = !going;
    return going;
  }

 private:
  static constexpr const char* kLeft = "499";  // nginx's status of a client that left

  std::unique_ptr<HttpAnswer> answer_;
  HttpHeaders headers_;
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
  reply.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                   {"Access-Control-Allow-Headers",
                    wanted.empty() ? "Authorization, Content-Type" : std::string(wanted)},
                   {"Access-Control-Max-Age", "86400"}};
  return reply;
}

}  // namespace

Routes::Routes(RoutesOptions options)
    : options_(std::move(options)),
      responses_(std::make_shared<ResponseStore>(options_.response_store)),
      started_(unix_seconds()) {}

void Routes::attach(Service& service) {
  service.watch_memory({.name = "stored_responses",
                        .bytes =
                            [store = std::weak_ptr(responses_)] {
                              const auto alive = store.lock();
                              return alive == nullptr ? 0 : static_cast<int64_t>(alive->bytes());
                            },
                        .shrink =
                            [store = std::weak_ptr(responses_)] {
                              if (const auto alive = store.lock()) {
                                alive->shrink();
                              }
                            }});
  service_ = &service;
}

// Returns: null if the request needs a key and has none, or if an open route's has none.
std::shared_ptr<const Caller> Routes::caller_of(const HttpRequest& head, Access access) const {
  const std::string_view site = head.header("sec-fetch-site");
  const bool own_page = site.empty() || site == "none" || site == "same-origin";
  // Anthropic's clients send the key alone.
  if (const std::string_view key = head.header("x-api-key");
      !key.empty() && head.header("authorization").empty()) {
    return options_.api_keys.find(fmt::format("Bearer {}", key), /*basic_too=*/false);
  }
  return options_.api_keys.find(head.header("authorization"),
                                /*basic_too=*/access == Access::page || own_page);
}

// Without a key, a server is protected because only its own machine reaches it. A web page in a
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

// Fills in the admission.
// Returns: the reply to a request that is refused.
std::optional<HttpReply> Routes::decide(const HttpRequest& head, HttpAdmission& admission) const {
  if (!options_.cors_origin.empty() && head.method == "OPTIONS") {
    return preflight_reply(head);
  }
  const Route* const route = find_route(head.path, head.method);
  admission.route = route;
  // A path that is not known needs a key too, so as not to reveal which paths exist.
  const Access access = route == nullptr ? Access::key : route->access;
  if (const absl::Status status = check_origin(head, access); !status.ok()) {
    return error_reply_at(head.path, status);
  }
  admission.caller = caller_of(head, access);
  if (admission.caller != nullptr) {
    admission.record->set_caller(*admission.caller);
    admission.key_name = admission.caller->turn_name();
  } else if (access != Access::open) {
    return locked_reply(head.path, access);
  }
  if (access == Access::admin && !admission.caller->admin) {
    return error_reply_at(head.path, absl::PermissionDeniedError(fmt::format(
                                         "{} is for keys with the right 'admin'", head.path)));
  }
  if (route == nullptr) {
    return nowhere_reply(head.path);
  }
  if (!allows(route->method, head.method)) {
    return method_reply(head.method, head.path);
  }
  if (std::holds_alternative<ModelEndpoint>(route->endpoint) && service_ == nullptr) {
    return error_reply_at(head.path, absl::UnavailableError("the model is being loaded"));
  }
  admission.probe = access == Access::open;
  admission.pooled = route->work == Work::grows;
  if (admission.pooled && service_ != nullptr) {
    if (const absl::Status status = service_.load()->admit(*admission.caller); !status.ok()) {
      return error_reply_at(head.path, status);
    }
  }
  return std::nullopt;
}

std::variant<HttpAdmission, HttpReply> Routes::admit(const HttpRequest& head) {
  HttpAdmission admission;
  admission.record = std::make_shared<RequestRecord>();
  admission.record->id = request_id_of(head.header("x-request-id"));
  admission.record->trace = traceparent_of(head.header("traceparent"));
  admission.record->method = head.method;
  admission.record->path = head.path;
  if (std::optional<HttpReply> refusal = decide(head, admission)) {
    return logged(*std::move(refusal), *admission.record);
  }
  return admission;
}

// Returns: headers of every answer: the request's id and trace context, and those that allow pages
// of the CORS origin to read it.
HttpHeaders Routes::headers_of(const RequestRecord& record) const {
  HttpHeaders headers;
  if (!options_.cors_origin.empty()) {
    headers = cors_headers(options_.cors_origin);
  }
  headers.emplace_back("x-request-id", record.id);
  if (!record.trace.empty()) {
    headers.emplace_back("traceparent", record.trace);
  }
  return headers;
}

// Returns: a whole answer, with these headers. Logs the end of the request.
HttpReply Routes::logged(HttpReply reply, const RequestRecord& record) const {
  log_access(record, fmt::format("{}", reply.status), true);
  const HttpHeaders headers = headers_of(record);
  reply.headers.insert(reply.headers.end(), headers.begin(), headers.end());
  add_warning(record, reply.headers);
  return reply;
}

HttpResult Routes::handle(const HttpRequest& request, const HttpAdmission& admission,
                          std::shared_ptr<Waker> waker) {
  HttpResult result = dispatch(request, admission, std::move(waker));
  if (auto* reply = std::get_if<HttpReply>(&result)) {
    return logged(std::move(*reply), *admission.record);
  }
  return std::make_unique<LoggedAnswer>(std::move(std::get<std::unique_ptr<HttpAnswer>>(result)),
                                        headers_of(*admission.record), admission.record);
}

HttpResult Routes::dispatch(const HttpRequest& request, const HttpAdmission& admission,
                            std::shared_ptr<Waker> waker) {
  const Route* const route = admission.route;
  TESSERA_CHECK(route != nullptr, "a request that was admitted has a route");
  if (const auto* plain = std::get_if<PlainEndpoint>(&route->endpoint)) {
    return (*plain)();
  }
  std::optional<LenientFields> lenient;
  if (options_.lenient) {
    lenient.emplace();
  }
  HttpResult result = std::get<ModelEndpoint>(route->endpoint)(
      {.request = request,
       .rest = std::string_view(request.path).substr(fixed_part(*route).size()),
       .service = *service_,
       .responses = *responses_,
       .waker = std::move(waker),
       .caller = admission.caller,
       .record = admission.record,
       .max_choices = options_.max_choices,
       .started = started_});
  if (lenient.has_value() && !lenient->warning().empty()) {
    admission.record->add_warning(lenient->warning());
  }
  return result;
}

HttpReply Routes::refuse(int status, const std::string& reason, std::string_view path,
                         const HttpAdmission& admission) {
  const std::string_view at = admission.record != nullptr ? admission.record->path : path;
  HttpReply reply = error_reply_at(
      at, status == 503 ? absl::UnavailableError(reason) : absl::InvalidArgumentError(reason),
      status);
  if (admission.record != nullptr) {
    return logged(std::move(reply), *admission.record);
  }
  RequestRecord record;  // of input without a valid head
  record.id = request_id_of({});
  record.method = record.path = "-";
  return logged(std::move(reply), record);
}

}  // namespace tessera
