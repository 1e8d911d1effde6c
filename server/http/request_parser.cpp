#include "server/http/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "kernels/check.h"

namespace tessera {

namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

std::string lower(beast::string_view text) {
  return absl::AsciiStrToLower({text.data(), text.size()});
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char letter = absl::ascii_tolower(static_cast<unsigned char>(c));
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// Decodes "%XX". Other text is not changed.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    decoded += low >= 0 ? static_cast<char>(high * 16 + low) : text[i];
    i += low >= 0 ? 2 : 0;
  }
  return decoded;
}

// "/v1/models?x=1" and "http://host/v1/models" are both "/v1/models".
std::string path_of(std::string_view target) {
  if (!target.empty() && target.front() != '/') {
    const std::size_t scheme = target.find("://");
    const std::size_t slash =
        scheme == std::string_view::npos ? scheme : target.find('/', scheme + 3);
    if (slash != std::string_view::npos) {
      target.remove_prefix(slash);
    }
  }
  return percent_decoded(target.substr(0, target.find_first_of("?#")));
}

}  // namespace

struct HttpRequestParser::Parser {
  explicit Parser(Limits some) : limits(some) { reset(); }

  void reset() {
    fresh = true;
    head_bytes = 0;
    message.emplace();  // not eager: put() stops at the end of the head
    message->header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    message->body_limit(limits.body_bytes);
  }

  void refuse(beast::error_code error) {
    refusal.emplace();
    if (error == http::error::header_limit) {
      *refusal = {431, fmt::format("the request's head is longer than the {} bytes allowed",
                                   limits.header_bytes)};
    } else if (error == http::error::body_limit) {
      *refusal = {413, fmt::format("the request's body is longer than the {} bytes allowed",
                                   limits.body_bytes)};
    } else {
      *refusal = {400, fmt::format("malformed HTTP: {}", error.message())};
    }
  }

  Limits limits;
  bool fresh = true;           // no byte of the request was read
  std::size_t head_bytes = 0;  // bytes of the head read so far
  std::optional<http::request_parser<http::string_body>> message;
  std::optional<Refusal> refusal;
};

HttpRequestParser::HttpRequestParser(Limits limits) : parser_(std::make_unique<Parser>(limits)) {}
HttpRequestParser::~HttpRequestParser() = default;

std::size_t HttpRequestParser::feed(std::string_view bytes) {
  std::size_t used = 0;
  if (parser_->fresh) {  // line ends between requests are skipped
    used = std::min(bytes.find_first_not_of("\r\n"), bytes.size());
    parser_->fresh = used == bytes.size();
  }
  while (used < bytes.size() && state() != State::complete && state() != State::refused) {
    const std::string_view rest = bytes.substr(used);
    const bool in_head = state() == State::head;
    beast::error_code error;
    const std::size_t n =
        parser_->message->put(boost::asio::const_buffer(rest.data(), rest.size()), error);
    used += n;
    // Beast's own count has the first line in it or not, depending on the pieces.
    parser_->head_bytes += in_head ? n : 0;
    if (parser_->head_bytes > parser_->limits.header_bytes) {
      error = http::error::header_limit;
    }
    if (error == http::error::need_more) {
      break;
    }
    if (error) {
      parser_->refuse(error);
    } else if (n == 0) {
      break;
    }
  }
  return used;
}

HttpRequestParser::State HttpRequestParser::state() const {
  if (parser_->refusal) {
    return State::refused;
  }
  if (parser_->message->is_done()) {
    return State::complete;
  }
  return parser_->message->is_header_done() ? State::body : State::head;
}

const HttpRequestParser::Refusal& HttpRequestParser::refusal() const {
  return *parser_->refusal;
}

bool HttpRequestParser::expects_continue() const {
  return beast::iequals(parser_->message->get()[http::field::expect], "100-continue");
}

HttpRequest HttpRequestParser::take() {
  TESSERA_CHECK(state() == State::complete, "no request to take");
  http::request<http::string_body>& message = parser_->message->get();
  HttpRequest request;
  request.method = view(message.method_string());
  request.path = path_of(view(message.target()));
  request.http_1_1 = message.version() >= 11;
  request.keep_alive = parser_->message->keep_alive();
  for (const auto& field : message) {
    request.headers.emplace_back(lower(field.name_string()), view(field.value()));
  }
  request.body = std::move(message.body());
  parser_->reset();
  return request;
}

}  // namespace tessera
