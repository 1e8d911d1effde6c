#include "server/http/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "base/check.h"
#include "server/http/chunked_body.h"
#include "server/http/inflate.h"

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

using Refusal = HttpRequestParser::Refusal;
using Fields = http::request_header<>;

// Length of a body, as the head declares it.
struct Framing {
  bool chunked = false;
  std::size_t length = 0;  // if it is not chunked
};

// Returns: the only length that RFC 9112, section 6, lets the head declare; otherwise a refusal.
std::variant<Framing, Refusal> framing_of(const Fields& fields, std::size_t max_body) {
  const auto lengths = fields.count(http::field::content_length);
  const auto codings = fields.count(http::field::transfer_encoding);
  if (codings > 0) {
    const std::string coding = lower(fields[http::field::transfer_encoding]);
    if (fields.version() < 11 || lengths > 0 || codings > 1) {
      return Refusal{
          400, "Transfer-Encoding must stand alone: once, without Content-Length, in HTTP/1.1"};
    }
    if (coding != "chunked") {
      return Refusal{501, "the only Transfer-Encoding of this server is chunked"};
    }
    return Framing{.chunked = true};
  }
  if (lengths == 0) {
    return Framing{};
  }
  const std::string_view text = view(fields[http::field::content_length]);
  uint64_t length = 0;
  if (lengths > 1 || text.find_first_not_of("0123456789") != std::string_view::npos ||
      !absl::SimpleAtoi({text.data(), text.size()}, &length)) {
    return Refusal{400, "Content-Length must be one number"};
  }
  if (length > max_body) {
    return Refusal{413,
                   fmt::format("the request's body is longer than the {} bytes allowed", max_body)};
  }
  return Framing{.length = static_cast<std::size_t>(length)};
}

// RFC 9112, section 3.2: one Host in HTTP/1.1, at most one before.
bool has_valid_host(const Fields& fields) {
  const auto hosts = fields.count(http::field::host);
  if (hosts != 1) {
    return hosts == 0 && fields.version() < 11;
  }
  const std::string_view host = view(fields[http::field::host]);
  return std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("-._~!$&'()*+,;=:[]%").find(c) != std::string_view::npos;
  });
}

}  // namespace

// The head is read by Beast, the body here.
struct HttpRequestParser::Parser {
  explicit Parser(Limits some) : limits(some) { reset(); }

  void reset() {
    state = State::head;
    fresh = true;
    head_bytes = 0;
    last = 0;
    request = HttpRequest();
    chunks.emplace(limits.header_bytes);
    message.emplace();  // not eager: put() stops at the end of the head
    message->header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    message->body_limit(boost::none);
  }

  void refuse(Refusal reason) {
    state = State::refused;
    refusal = std::move(reason);
  }
  void refuse(beast::error_code error) {
    if (error == http::error::header_limit) {
      refuse({431, fmt::format("the request's head is longer than the {} bytes allowed",
                               limits.header_bytes)});
    } else {
      refuse({400, fmt::format("malformed HTTP: {}", error.message())});
    }
  }
  void refuse_body() {
    refuse({413, fmt::format("the request's body is longer than the {} bytes allowed",
                             limits.body_bytes)});
  }

  std::size_t feed_head(std::string_view bytes);
  void check_lines(std::string_view bytes);
  void finish_head();
  std::size_t feed_body(std::string_view bytes);

  const Limits limits;
  State state = State::head;
  bool fresh = true;           // no byte of the request was read
  std::size_t head_bytes = 0;  // bytes of the head read so far
  char last = 0;               // of them
  std::optional<http::request_parser<http::empty_body>> message;
  HttpRequest request;
  Framing framing;
  std::optional<ChunkedBody> chunks;
  Refusal refusal;
};

std::size_t HttpRequestParser::Parser::feed_head(std::string_view bytes) {
  beast::error_code error;
  const std::size_t n = message->put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
  // Beast's own count has the first line in it or not, depending on the pieces.
  head_bytes += n;
  check_lines(bytes.substr(0, n));
  if (head_bytes > limits.header_bytes) {
    error = http::error::header_limit;
  }
  if (error && error != http::error::need_more && state == State::head) {
    refuse(error);
  } else if (message->is_header_done() && state == State::head) {
    finish_head();
  }
  return n;
}

// Beast joins a folded line to the one before, and takes a carriage return for a blank.
void HttpRequestParser::Parser::check_lines(std::string_view bytes) {
  for (const char c : bytes) {
    if (last == '\n' && (c == ' ' || c == '\t')) {
      return refuse({400, "malformed HTTP: a line of the head is folded onto the next"});
    }
    if ((last == '\r') != (c == '\n')) {
      return refuse({400, "malformed HTTP: a line of the head does not end with CR LF"});
    }
    last = c;
  }
}

void HttpRequestParser::Parser::finish_head() {
  const auto& fields = message->get();
  request.method = view(fields.method_string());
  request.path = path_of(view(fields.target()));
  if (!has_valid_host(fields)) {
    return refuse({400, "malformed HTTP: a request of HTTP/1.1 has one Host"});
  }
  auto framed = framing_of(fields, limits.body_bytes);
  if (auto* refused = std::get_if<Refusal>(&framed)) {
    return refuse(std::move(*refused));
  }
  framing = std::get<Framing>(framed);
  if (const std::string_view coding = view(fields[http::field::content_encoding]);
      !is_read_coding(coding) || fields.count(http::field::content_encoding) > 1) {
    return refuse({415, "Content-Encoding must be gzip, deflate or identity"});
  }
  request.http_1_1 = fields.version() >= 11;
  request.keep_alive = message->keep_alive();
  for (const auto& field : fields) {
    request.headers.emplace_back(lower(field.name_string()), view(field.value()));
  }
  state = framing.chunked || framing.length > 0 ? State::body : State::complete;
}

std::size_t HttpRequestParser::Parser::feed_body(std::string_view bytes) {
  if (!framing.chunked) {
    const std::size_t n = std::min(bytes.size(), framing.length - request.body.size());
    request.body.reserve(framing.length);
    request.body.append(bytes.substr(0, n));
    state = request.body.size() == framing.length ? State::complete : State::body;
    return n;
  }
  const std::size_t n = chunks->feed(bytes, limits.body_bytes, request.body);
  switch (chunks->state()) {
    case ChunkedBody::State::incomplete:
      break;
    case ChunkedBody::State::complete:
      state = State::complete;
      break;
    case ChunkedBody::State::malformed:
      refuse({400, "malformed HTTP: bad chunk"});
      break;
    case ChunkedBody::State::too_large:
      refuse_body();
      break;
  }
  return n;
}

HttpRequestParser::HttpRequestParser(Limits limits) : parser_(std::make_unique<Parser>(limits)) {}
HttpRequestParser::~HttpRequestParser() = default;

std::size_t HttpRequestParser::feed(std::string_view bytes) {
  return feed(bytes, /*only_head=*/false);
}

std::size_t HttpRequestParser::feed_head(std::string_view bytes) {
  return feed(bytes, /*only_head=*/true);
}

std::size_t HttpRequestParser::feed(std::string_view bytes, bool only_head) {
  std::size_t used = 0;
  if (parser_->fresh) {  // line ends between requests are skipped
    used = std::min(bytes.find_first_not_of("\r\n"), bytes.size());
    parser_->fresh = used == bytes.size();
  }
  while (used < bytes.size() &&
         (state() == State::head || (state() == State::body && !only_head))) {
    const std::string_view rest = bytes.substr(used);
    const std::size_t n =
        state() == State::head ? parser_->feed_head(rest) : parser_->feed_body(rest);
    used += n;
    if (n == 0) {
      break;
    }
  }
  return used;
}

HttpRequestParser::State HttpRequestParser::state() const {
  return parser_->state;
}

const HttpRequestParser::Refusal& HttpRequestParser::refusal() const {
  return parser_->refusal;
}

const HttpRequest& HttpRequestParser::head() const {
  return parser_->request;
}

std::optional<std::size_t> HttpRequestParser::content_length() const {
  return parser_->framing.chunked ? std::nullopt : std::optional(parser_->framing.length);
}

std::size_t HttpRequestParser::body_bytes() const {
  return parser_->request.body.size();
}

bool HttpRequestParser::expects_continue() const {
  const std::string_view expected = parser_->request.header("expect");
  return lower({expected.data(), expected.size()}) == "100-continue";
}

HttpRequest HttpRequestParser::take() {
  TESSERA_CHECK(state() == State::complete, "no request to take");
  HttpRequest request = std::move(parser_->request);
  parser_->reset();
  return request;
}

}  // namespace tessera
