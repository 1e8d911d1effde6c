#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "tests/server/certificate.h"
#include "tests/server/http_fixture.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

template <auto release>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    release(pointer);
  }
};

// A blocking TLS client that accepts any certificate.
class TlsClient {
 public:
  explicit TlsClient(uint16_t port) : context_(SSL_CTX_new(TLS_client_method())) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      ssl_.reset(SSL_new(context_.get()));
      SSL_set_fd(ssl_.get(), socket_);
      connected = SSL_connect(ssl_.get()) == 1;
    }
  }
  ~TlsClient() { ::close(socket_); }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  void send(const std::string& text) {
    SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
  }

  // Reads up to `end`, or up to the server's close notification if `end` is empty.
  std::string read_until(const std::string& end) {
    std::string text;
    char buffer[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      const int n = SSL_read(ssl_.get(), buffer, sizeof(buffer));
      if (n <= 0) {
        said_goodbye = SSL_get_error(ssl_.get(), n) == SSL_ERROR_ZERO_RETURN;
        break;
      }
      text.append(buffer, static_cast<std::size_t>(n));
    }
    return text;
  }

  // Returns: true if the server showed the certificate of `pair`.
  bool sees(const CertificatePair& pair) const {
    const std::unique_ptr<FILE, Freed<fclose>> file(std::fopen(pair.certificate().c_str(), "r"));
    const std::unique_ptr<X509, Freed<X509_free>> expected(
        PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
    const std::unique_ptr<X509, Freed<X509_free>> shown(SSL_get1_peer_certificate(ssl_.get()));
    return expected && shown && X509_cmp(expected.get(), shown.get()) == 0;
  }

  bool connected = false;
  bool said_goodbye = false;

 private:
  int socket_ = -1;
  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Freed<SSL_free>> ssl_;
};

class HttpTls : public HttpFixture {
 protected:
  HttpOptions tls_options() const {
    return {.header_timeout = 300ms, .tls_certificate = pair.certificate(), .tls_key = pair.key()};
  }

  const CertificatePair pair;
};

TEST_F(HttpTls, AnswersOneRequestAfterAnotherAndSaysGoodbye) {
  fake.engine->answer_with([](const EngineRequest&) { return "Hello"; });
  start(tls_options());
  TlsClient client(port());
  ASSERT_TRUE(client.connected);
  client.send(print_get("/version"));
  EXPECT_THAT(client.read_until("}"), HasSubstr("200 OK"));
  client.send(print_post("/v1/completions", R"({"prompt":"a","stream":true})"));
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("[DONE]"));
  client.send(print_get("/version", "Connection: close\r\n"));
  EXPECT_THAT(client.read_until(""), HasSubstr("200 OK"));
  EXPECT_TRUE(client.said_goodbye);
}

TEST_F(HttpTls, NoticesAClientThatLeaves) {
  start(tls_options());
  {
    TlsClient client(port());
    client.send(print_post("/v1/completions", R"({"prompt":"a","stream":true})"));
    ASSERT_TRUE(fake.engine->wait_for_requests(1));
    fake.engine->emit(0, "x");
    EXPECT_THAT(client.read_until("\"x\""), HasSubstr("200 OK"));
  }
  EXPECT_TRUE(fake.engine->wait_for_cancel(0));
  fake.engine->finish(0, FinishReason::cancelled);
}

TEST_F(HttpTls, DropsClientsThatDoNotSpeakIt) {
  start(tls_options());
  HttpClient plain(port());
  plain.send(print_get("/version"));
  EXPECT_TRUE(plain.closed_by_server());
  HttpClient silent(port());
  EXPECT_TRUE(silent.closed_by_server()) << "a handshake has to come in time";
  EXPECT_TRUE(listener->drain(10s));
}

TEST_F(HttpTls, ShowsACertificateThatWasReadAgainToNewConnections) {
  start(tls_options());
  const CertificatePair old;
  pair.copy_to(old);
  const CertificatePair renewed;
  TlsClient before(port());
  EXPECT_TRUE(before.sees(old));
  std::ofstream(pair.key()) << "no key";
  EXPECT_FALSE(listener->reload_tls().ok());
  EXPECT_TRUE(TlsClient(port()).sees(old)) << "an error changes nothing";
  renewed.copy_to(pair);
  ASSERT_TRUE(listener->reload_tls().ok());
  EXPECT_TRUE(TlsClient(port()).sees(renewed));
  before.send(print_get("/version", "Connection: close\r\n"));
  EXPECT_THAT(before.read_until(""), HasSubstr("200 OK")) << "connections go on";
}

TEST_F(HttpTls, RefusesAKeyThatIsNotTheCertificates) {
  const CertificatePair other;
  HttpOptions options = tls_options();
  options.port = 0;
  options.tls_key = other.key();
  routes = std::make_unique<Routes>(RoutesOptions());
  const auto started = HttpListener::start(options, *routes, fake.work);
  EXPECT_EQ(started.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(started.status().message(), HasSubstr(other.key()));
}

}  // namespace
}  // namespace tessera
