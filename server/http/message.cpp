#include "server/http/message.h"

#include <fmt/format.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tessera {

namespace {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Internal Server Error";
  }
}

// "Fri, 20 Nov 2026 12:00:00 GMT"
std::string date_now() {
  return absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone());
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto it = std::find_if(headers.begin(), headers.end(),
                               [&](const auto& header) { return header.first == name; });
  return it == headers.end() ? std::string_view() : std::string_view(it->second);
}

std::string print_head(const HttpReply& reply, const HttpRequest& request, bool keep_alive) {
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\n",
      reply.status, reason_phrase(reply.status), date_now(), reply.content_type);
  for (const auto& [name, value] : reply.headers) {
    head += fmt::format("{}: {}\r\n", name, value);
  }
  if (reply.streamed) {
    head += request.http_1_1 ? "Transfer-Encoding: chunked\r\n" : "";
  } else {
    head += fmt::format("Content-Length: {}\r\n", reply.body.size());
  }
  head += fmt::format("Connection: {}\r\n\r\n", keep_alive ? "keep-alive" : "close");
  return head;
}

std::string print_chunk(std::string_view piece) {
  return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

}  // namespace tessera
