#include "eval/http/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr uint64_t kMaxBody = uint64_t{1} << 30;  // bytes; log probabilities of a prompt are long
constexpr size_t kShownBody = 300;

}  // namespace

struct HttpClient::State {
  explicit State(HttpAddress where) : address(std::move(where)) {}

  void connect() {
    asio::ip::tcp::resolver resolver(io);
    stream.emplace(io);
    stream->connect(resolver.resolve(address.host, address.port));
  }

  http::response<http::string_body> exchange(const http::request<http::string_body>& request) {
    if (!stream) connect();
    http::write(*stream, request);
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxBody);
    http::read(*stream, buffer, parser);
    if (!parser.get().keep_alive()) stream.reset();
    return parser.release();
  }

  absl::StatusOr<std::string> send(http::verb verb, const std::string& path, std::string body) {
    http::request<http::string_body> request(verb, address.prefix + path, 11);
    request.set(http::field::host, absl::StrCat(address.host, ":", address.port));
    request.set(http::field::content_type, "application/json");
    request.body() = std::move(body);
    request.prepare_payload();
    const std::string where = absl::StrCat(address.host, ":", address.port, path);
    try {
      const auto response = exchange(request);
      if (response.result() == http::status::ok) {
        return response.body();
      }
      return absl::InvalidArgumentError(absl::StrCat(where, ": status ", response.result_int(),
                                                     ": ", response.body().substr(0, kShownBody)));
    } catch (const boost::system::system_error& error) {
      stream.reset();
      return absl::UnavailableError(absl::StrCat(where, ": ", error.code().message()));
    }
  }

  HttpAddress address;
  asio::io_context io;
  std::optional<beast::tcp_stream> stream;
  beast::flat_buffer buffer;
};

HttpClient::HttpClient(HttpAddress address) : state_(std::make_unique<State>(std::move(address))) {}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;

absl::StatusOr<std::string> HttpClient::get(const std::string& path) {
  return state_->send(boost::beast::http::verb::get, path, "");
}

absl::StatusOr<std::string> HttpClient::post(const std::string& path, std::string json) {
  return state_->send(boost::beast::http::verb::post, path, std::move(json));
}

}  // namespace tessera
