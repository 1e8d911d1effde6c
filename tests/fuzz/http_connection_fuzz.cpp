// Input: the size of the pieces (first byte), then the bytes that a client sends before it closes.
// They go through a whole connection: head, admission, body, answer, the next request. The requests
// that reach the handler must not depend on the size, and everything written must be whole replies.
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <memory>
#include <string>

#include "base/check.h"
#include "server/http/connection.h"
#include "tests/fuzz/fuzz_target.h"

namespace tessera {
namespace {

namespace asio = boost::asio;

// A client's bytes in pieces, and the answer.
class FuzzTransport final : public HttpTransport {
 public:
  FuzzTransport(std::string_view bytes, size_t at_a_time, std::string& written)
      : bytes_(bytes), at_a_time_(at_a_time), written_(written) {}

  asio::awaitable<bool> handshake() override { co_return true; }
  asio::awaitable<size_t> read(std::span<char> buffer) override {
    const size_t n = closed_ ? 0 : std::min({buffer.size(), at_a_time_, bytes_.size()});
    std::copy_n(bytes_.begin(), n, buffer.begin());
    bytes_.remove_prefix(n);
    co_return n;
  }
  asio::awaitable<size_t> write(std::string_view bytes) override {
    const size_t n = closed_ ? 0 : std::min<size_t>(bytes.size(), 1000);
    written_ += bytes.substr(0, n);
    co_return n;
  }
  size_t unacknowledged() override { return 0; }
  asio::awaitable<void> finish_writing() override { co_return; }
  void close() override { closed_ = true; }
  void reset() override { closed_ = true; }

 private:
  std::string_view bytes_;
  const size_t at_a_time_;
  std::string& written_;
  bool closed_ = false;
};

// Notes requests, and answers them with their own size. Refuses some by their head.
class FuzzHandler final : public HttpHandler {
 public:
  std::variant<HttpAdmission, HttpReply> admit(const HttpRequest& head) override {
    TESSERA_CHECK(head.body.empty(), "a head has no body");
    if (head.path.starts_with("/refused")) {
      return refuse(401, "refused", {}, {});
    }
    HttpAdmission admission;
    admission.key_name = head.method;
    admission.pooled = head.path == "/pooled";
    return admission;
  }
  HttpResult handle(const HttpRequest& request, const HttpAdmission&,
                    std::shared_ptr<Waker>) override {
    requests.push_back(request.method + ' ' + request.path + ' ' + request.body);
    HttpReply reply;
    reply.body = std::to_string(request.body.size());
    return reply;
  }
  HttpReply refuse(int status, const std::string& reason, std::string_view,
                   const HttpAdmission&) override {
    HttpReply reply;
    reply.status = status;
    reply.body = reason;
    return reply;
  }

  std::vector<std::string> requests;
};

void expect_whole_replies(std::string_view written) {
  while (!written.empty()) {
    TESSERA_CHECK(written.starts_with("HTTP/1.1 "), "no status line");
    const size_t end = written.find("\r\n\r\n");
    TESSERA_CHECK(end != std::string_view::npos, "half a head");
    const std::string_view head = written.substr(0, end + 2);
    written.remove_prefix(end + 4);
    const size_t at = head.find("\r\nContent-Length: ");
    if (at != std::string_view::npos) {  // not "100 Continue"
      const size_t length = std::stoul(std::string(head.substr(at + 18)));
      written.remove_prefix(std::min(length, written.size()));  // the answer to HEAD has no body
    }
  }
}

// Returns: the requests of a connection that sends `bytes`.
std::vector<std::string> serve(std::string_view bytes, size_t at_a_time) {
  static const HttpOptions options{.header_bytes = 1024, .body_bytes = 512};
  static ByteBudget budget(1 << 20);
  static WorkPool pool({});
  static RequestWork work{budget, pool};
  FuzzHandler handler;
  std::string written;
  const auto io = std::make_shared<asio::io_context>(1);
  bool destroyed = false;
  std::make_shared<HttpConnection>(
      HttpConnection::Args{.executor = asio::make_strand(*io),
                           .io = io,
                           .transport = std::make_unique<FuzzTransport>(bytes, at_a_time, written),
                           .options = options,
                           .handler = handler,
                           .work = work,
                           .on_destroyed = [&] { destroyed = true; }})
      ->start();
  io->run();
  TESSERA_CHECK(destroyed, "a connection whose client has gone is still there");
  TESSERA_CHECK(budget.used() == 0, "a connection keeps its bytes");
  if (written.find("HEAD ") == std::string::npos && bytes.find("HEAD") == std::string_view::npos) {
    expect_whole_replies(written);
  }
  return std::move(handler.requests);
}

}  // namespace
}  // namespace tessera

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  if (size == 0) return 0;
  const std::string_view bytes = text_of(data + 1, size - 1);
  const auto whole = serve(bytes, std::max<size_t>(bytes.size(), 1));
  const auto pieces = serve(bytes, std::max<size_t>(data[0], 1));
  TESSERA_CHECK(whole == pieces, "pieces change the requests");
  return 0;
}
