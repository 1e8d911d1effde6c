#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A complete request within the limits.
struct HttpRequest {
  std::string method;
  std::string path;     // percent-decoded, without the query
  HttpHeaders headers;  // names in lower case
  std::string body;
  bool http_1_1 = true;  // false: HTTP/1.0, no chunks, the connection closes by default
  bool keep_alive = true;

  // Returns: a header's value by its name in lower case; empty if there is none.
  std::string_view header(std::string_view name) const;
};

// Head and body of an answer. If `streamed`, the body is only its beginning, and pieces follow.
struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // besides content type, length and connection
  std::string body;
  bool streamed = false;
};

// Returns: the head of `reply` as an answer to `request`: "HTTP/1.1 200 OK\r\n...\r\n\r\n".
std::string print_head(const HttpReply& reply, const HttpRequest& request, bool keep_alive);

// Returns: a piece of a streamed body, framed as one chunk.
// Requires: `piece` is not empty.
std::string print_chunk(std::string_view piece);

inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace tessera
