#include "load/client/http_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "eval/measurement/http_address.h"
#include "load/client/openai.h"
#include "load/request/json_text.h"

namespace tessera::load {
namespace {

using nlohmann::json;
using Done = std::function<void(absl::StatusOr<std::string>)>;

constexpr size_t kMaxCollected = size_t{16} << 20;  // bytes
constexpr size_t kShownBody = 300;

// Collects the body of one response.
class Collected final : public HttpResponse {
 public:
  Collected(std::string where, Done done) : where_(std::move(where)), done_(std::move(done)) {}

  void head(const HttpHead& head) override { status_ = head.status; }
  void body(std::string_view bytes) override {
    text_.append(bytes.substr(0, kMaxCollected - std::min(kMaxCollected, text_.size())));
  }
  void ended(CallEnd end, const std::string& message) override {
    if (end != CallEnd::complete) {
      done_(absl::UnavailableError(absl::StrCat(where_, ": ", message)));
    } else if (status_ != 200) {
      done_(absl::NotFoundError(
          absl::StrCat(where_, ": status ", status_, ": ", text_.substr(0, kShownBody))));
    } else {
      done_(std::move(text_));
    }
  }

 private:
  const std::string where_;
  const Done done_;
  int status_ = 0;
  std::string text_;
};

class HttpServer final : public Server {
 public:
  HttpServer(EventLoop& loop, std::unique_ptr<HttpConnections> connections, std::string where)
      : loop_(loop), connections_(std::move(connections)), where_(std::move(where)) {}

  absl::StatusOr<Identity> identify(const std::string& model) override {
    absl::StatusOr<std::string> text = absl::UnavailableError(where_);
    call({.target = "/v1/models"}, [&](absl::StatusOr<std::string> got) { text = std::move(got); });
    loop_.run();
    TESSERA_RETURN_IF_ERROR(text.status());
    const json list = parse_json(*text);
    if (!list.is_object() || !list.contains("data") || !list["data"].is_array() ||
        list["data"].empty() || !list["data"][0].is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--url: ", where_, "/v1/models is not a list of models"));
    }
    const json& first = list["data"][0];
    model_ = model.empty() ? first.value("id", std::string()) : model;
    return Identity{model_, first.value("owned_by", std::string()) == "tessera"};
  }

  bool plays(const Fault& /*fault*/) const override { return true; }

  void generate(const LoadRequest& request, const Fault& fault,
                std::shared_ptr<GenerationEvents> events) override {
    connections_->call(
        {.target = request.messages.empty() ? "/v1/completions" : "/v1/chat/completions",
         .body = print_body(request, model_),
         .post = true,
         .fault = fault},
        make_openai_reader(std::move(events)));
  }

  void read_metrics(std::function<void(std::optional<ServerReading>)> done) override {
    call({.target = "/metrics"}, [done = std::move(done)](const absl::StatusOr<std::string>& text) {
      done(text.ok() ? std::optional(parse_metrics(*text)) : std::nullopt);
    });
  }

  void flush_cache(std::function<void(absl::Status)> done) override {
    call(
        {.target = "/v1/cache/flush", .body = "{}", .post = true},
        [done = std::move(done)](const absl::StatusOr<std::string>& text) { done(text.status()); });
  }

 private:
  void call(HttpCall call, Done done) {
    auto collected =
        std::make_shared<Collected>(absl::StrCat(where_, call.target), std::move(done));
    connections_->call(std::move(call), std::move(collected));
  }

  EventLoop& loop_;
  const std::unique_ptr<HttpConnections> connections_;
  const std::string where_;
  std::string model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> make_http_server(HttpLoop& loop, const std::string& url,
                                                         const ServerOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const HttpAddress address, HttpAddress::parse(url));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<HttpConnections> connections,
                           loop.connections(address, {.api_key = options.api_key,
                                                      .timeout = options.timeout,
                                                      .freeze = options.freeze}));
  return std::make_unique<HttpServer>(loop, std::move(connections),
                                      absl::StrCat(address.host, ":", address.port));
}

}  // namespace tessera::load
