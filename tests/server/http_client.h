#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct HttpClientResponse {
  int status = 0;                              // 0: the server closed the connection instead
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunk frames
  bool complete = false;                       // received to its end
};

// A plain blocking client over loopback that can also misbehave. Reads time out after ten seconds.
class HttpClient {
 public:
  // `receive_bytes`: size of the socket's receive buffer; 0: the system default.
  explicit HttpClient(uint16_t port, int receive_bytes = 0);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool send(std::string_view bytes);
  void finish_sending();  // closes only the sending side
  void close();
  void reset();  // closes with RST: the server sees an error

  // Reads one whole response. `head_only`: the response of a HEAD request, which has no body.
  HttpClientResponse read_response(bool head_only = false);

  // Reads until `text` has come, in head or body.
  // Returns: false if it does not come.
  bool read_until(std::string_view text);

  // Reads and drops up to `bytes`. Returns: false at the end.
  bool read_some(std::size_t bytes);

  // Returns: true if the server closes the connection after the bytes that it still sends.
  bool closed_by_server();

  // Sends a request and reads its response.
  HttpClientResponse get(std::string_view path, std::string_view headers = {});
  HttpClientResponse request(std::string_view method, std::string_view path,
                             std::string_view headers = {});  // without a body
  HttpClientResponse post(std::string_view path, std::string_view body,
                          std::string_view headers = {});

 private:
  bool fill();  // reads more bytes; false at the end
  bool fill_to(std::size_t size);

  int socket_ = -1;
  std::string inbox_;
};

std::string print_get(std::string_view path, std::string_view headers = {});
std::string print_post(std::string_view path, std::string_view body, std::string_view headers = {});

// Returns: the payloads of the "data: ..." lines of a stream. Comments are skipped.
std::vector<std::string> events_of(const std::string& body);

}  // namespace tessera
