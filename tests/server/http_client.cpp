#include "tests/server/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

namespace tessera {

HttpClient::HttpClient(uint16_t port, int receive_bytes) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  if (receive_bytes > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  }
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close();
  }
}

HttpClient::~HttpClient() {
  close();
}

void HttpClient::close() {
  if (socket_ >= 0) {
    ::close(socket_);
    socket_ = -1;
  }
}

void HttpClient::reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close();
}

void HttpClient::finish_sending() {
  ::shutdown(socket_, SHUT_WR);
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool HttpClient::fill() {
  char buffer[16384];
  const ssize_t n = ::recv(socket_, buffer, sizeof(buffer), 0);
  if (n <= 0) {
    return false;
  }
  inbox_.append(buffer, static_cast<std::size_t>(n));
  return true;
}

bool HttpClient::fill_to(std::size_t size) {
  while (inbox_.size() < size) {
    if (!fill()) {
      return false;
    }
  }
  return true;
}

bool HttpClient::read_until(std::string_view text) {
  while (inbox_.find(text) == std::string::npos) {
    if (!fill()) {
      return false;
    }
  }
  return true;
}

bool HttpClient::read_some(std::size_t bytes) {
  std::string buffer(bytes, ' ');
  return ::recv(socket_, buffer.data(), buffer.size(), 0) > 0;
}

bool HttpClient::closed_by_server() {
  while (true) {
    char buffer[16384];
    const ssize_t n = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) {
      return true;
    }
    if (n < 0) {
      return false;
    }
  }
}

HttpClientResponse HttpClient::read_response(bool head_only) {
  HttpClientResponse response;
  if (!read_until("\r\n\r\n")) {
    return response;
  }
  const std::size_t head_end = inbox_.find("\r\n\r\n") + 4;
  std::string head = inbox_.substr(0, head_end - 2);
  inbox_.erase(0, head_end);
  response.status = std::atoi(head.c_str() + 9);
  for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
    const std::size_t end = head.find("\r\n", at);
    const std::size_t colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    response.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (head_only) {
    response.complete = true;
    return response;
  }
  if (response.headers.contains("content-length")) {
    const auto size =
        static_cast<std::size_t>(std::atoll(response.headers["content-length"].c_str()));
    response.complete = fill_to(size);
    response.body = inbox_.substr(0, size);
    inbox_.erase(0, response.body.size());
    return response;
  }
  if (!response.headers.contains("transfer-encoding")) {  // the body ends when the server closes
    while (fill()) {
    }
    response.body = std::exchange(inbox_, {});
    response.complete = true;
    return response;
  }
  while (read_until("\r\n")) {
    const std::size_t size = std::strtoul(inbox_.c_str(), nullptr, 16);
    inbox_.erase(0, inbox_.find("\r\n") + 2);
    if (!fill_to(size + 2) || inbox_.substr(size, 2) != "\r\n") {
      break;
    }
    response.body += inbox_.substr(0, size);
    inbox_.erase(0, size + 2);
    if (size == 0) {
      response.complete = true;
      break;
    }
  }
  return response;
}

HttpClientResponse HttpClient::get(std::string_view path, std::string_view headers) {
  send(print_get(path, headers));
  return read_response();
}

HttpClientResponse HttpClient::request(std::string_view method, std::string_view path,
                                       std::string_view headers) {
  send(std::string(method) + std::string(print_get(path, headers)).substr(3));
  return read_response();
}

HttpClientResponse HttpClient::post(std::string_view path, std::string_view body,
                                    std::string_view headers) {
  send(print_post(path, body, headers));
  return read_response();
}

std::string print_get(std::string_view path, std::string_view headers) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) +
         "\r\n";
}

std::string print_post(std::string_view path, std::string_view body, std::string_view headers) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(headers) + "\r\n" + std::string(body);
}

std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> events;
  std::size_t at = 0;
  while (at < body.size()) {
    const std::size_t end = body.find("\n\n", at);
    if (end != std::string::npos && body[at] == ':') {  // a comment
      at = end + 2;
      continue;
    }
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0) {
      events.push_back("malformed: " + body.substr(at));
      break;
    }
    events.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return events;
}

}  // namespace tessera
