#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/http/message.h"
#include "server/http/request_parser.h"

namespace tessera {
namespace {

using State = HttpRequestParser::State;

constexpr HttpRequestParser::Limits kLimits{.header_bytes = 512, .body_bytes = 64};

const std::string kPost =
    "POST /v1/completions?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX-Thing:  a b "
    "\r\n\r\nhello";

// Feeds `text` in pieces of `size` bytes, as a connection does.
State feed(HttpRequestParser& parser, const std::string& text, std::size_t size) {
  std::string inbox;
  for (std::size_t i = 0; i < text.size(); i += size) {
    inbox += text.substr(i, size);
    inbox.erase(0, parser.feed(inbox));
  }
  return parser.state();
}

int refused_with(const std::string& text, std::size_t size = 1000) {
  HttpRequestParser parser(kLimits);
  return feed(parser, text, size) == State::refused ? parser.refusal().status : 0;
}

TEST(HttpRequestParser, ReadsARequestInPiecesOfAnySize) {
  for (std::size_t size = 1; size <= kPost.size(); ++size) {
    SCOPED_TRACE(size);
    HttpRequestParser parser(kLimits);
    ASSERT_EQ(feed(parser, kPost, size), State::complete);
    const HttpRequest request = parser.take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/completions");
    EXPECT_EQ(request.body, "hello");
    EXPECT_EQ(request.header("x-thing"), "a b");
    EXPECT_EQ(request.header("absent"), "");
    EXPECT_TRUE(request.keep_alive);
    EXPECT_EQ(parser.state(), State::head);
  }
}

TEST(HttpRequestParser, CountsTheWholeHeadWhateverPiecesItComesIn) {
  const std::string line = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
  for (const std::size_t bytes : {kLimits.header_bytes, kLimits.header_bytes + 1}) {
    const std::string head = line + std::string(bytes - line.size() - 4, 'x') + "\r\n\r\n";
    for (const std::size_t size : {std::size_t{1}, std::size_t{100}, head.size()}) {
      SCOPED_TRACE(size);
      EXPECT_EQ(refused_with(head, size), bytes > kLimits.header_bytes ? 431 : 0);
    }
  }
}

TEST(HttpRequestParser, ReadsOneRequestAtATime) {
  HttpRequestParser parser(kLimits);
  std::string inbox = kPost + "\r\n" + kPost + "GET / HTTP/1.0\r\n\r\n";
  for (int i = 0; i < 2; ++i) {
    inbox.erase(0, parser.feed(inbox));
    ASSERT_EQ(parser.state(), State::complete);
    EXPECT_EQ(parser.take().body, "hello");
  }
  inbox.erase(0, parser.feed(inbox));
  ASSERT_EQ(parser.state(), State::complete);
  const HttpRequest last = parser.take();
  EXPECT_FALSE(last.keep_alive);
  EXPECT_FALSE(last.http_1_1);
  EXPECT_TRUE(inbox.empty());
}

TEST(HttpRequestParser, ReadsChunkedBodies) {
  HttpRequestParser parser(kLimits);
  ASSERT_EQ(
      feed(parser,
           "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n"
           "0\r\n\r\n",
           7),
      State::complete);
  EXPECT_EQ(parser.take().body, "abcde");
}

TEST(HttpRequestParser, SkipsChunkExtensionsAndTrailersInPiecesOfAnySize) {
  const std::string text =
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3 ;a=\"b;c\"\r\nabc\r\n02;x\r\nde\r\n0;last=1\r\nHost: other\r\nX: y\r\n\r\n";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    SCOPED_TRACE(size);
    HttpRequestParser parser(kLimits);
    ASSERT_EQ(feed(parser, text, size), State::complete);
    const HttpRequest request = parser.take();
    EXPECT_EQ(request.body, "abcde");
    EXPECT_EQ(request.header("host"), "h");
    EXPECT_EQ(request.header("x"), "") << "a trailer is no header";
  }
}

TEST(HttpRequestParser, BoundsTheLinesOfChunksAndAllTrailers) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string line(kLimits.header_bytes + 1, 'x');
  EXPECT_EQ(refused_with(head + "3;" + line), 400) << "also when it does not end";
  EXPECT_EQ(refused_with(head + "0\r\nX: " + line + "\r\n\r\n"), 400);
  std::string trailers;
  for (std::size_t i = 0; i <= kLimits.header_bytes / 4; ++i) {
    trailers += "a: b\r\n";
  }
  EXPECT_EQ(refused_with(head + "0\r\n" + trailers), 400);
}

// Shapes with which a request hides in the body of another, because two servers read the length
// differently. Sources: RFC 9112, sections 5.2, 6.1, 6.3 and 11.2; Kettle, "HTTP Desync Attacks".
TEST(HttpRequestParser, RefusesWhatAnotherServerMayReadDifferently) {
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  const char* const framings[] = {
      "Transfer-Encoding: gzip\r\n",
      "Transfer-Encoding: identity\r\n",
      "Transfer-Encoding: xchunked\r\n",
      "Transfer-Encoding: chunked, identity\r\n",
      "Transfer-Encoding: gzip, chunked\r\n",
      "Transfer-Encoding: chunked, chunked\r\n",
      "Transfer-Encoding: \"chunked\"\r\n",
      "Transfer-Encoding:\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
      "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
      "Transfer-Encoding : chunked\r\n",
      " Transfer-Encoding: chunked\r\n",
      "X: y\r\n Transfer-Encoding: chunked\r\n",
      "X: y\r\n\tz\r\n",
      "Transfer-Encoding:\r\n chunked\r\n",
      "Content-Length: 5\r\nContent-Length: 5\r\n",
      "Content-Length: 0, 0\r\n",
      "Content-Length: +0\r\n",
      "Content-Length: 0x0\r\n",
      "Content-Length: 0 0\r\n",
      "Content-Length:\r\n",
      "Content-Length : 0\r\n",
      "X: a\rContent-Length: 5\r\n",
      "X: a\r\rb\r\n",
      "X: a\nContent-Length: 5\r\n",
      "Host: h\r\n",
      "Host: a b\r\n",
  };
  for (const char* framing : framings) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{1000}}) {
      SCOPED_TRACE(framing);
      SCOPED_TRACE(size);
      const int status =
          refused_with(post + framing + "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", size);
      EXPECT_TRUE(status == 400 || status == 501) << status;
    }
  }
  EXPECT_EQ(refused_with("GET / HTTP/1.1\r\n\r\n"), 400) << "no host";
  EXPECT_EQ(refused_with("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"), 400);
  EXPECT_EQ(refused_with("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(refused_with("GET / HTTP/1.1\nHost: h\n\n"), 400);
  EXPECT_EQ(refused_with("GET / HTTP/1.0\r\n\r\n"), 0) << "HTTP/1.0 has no host";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  for (const char* body :
       {"5\n", "0x5\r\n", "-1\r\n", " 5\r\n", "5 5\r\n", "\r\n", ";x\r\n", "3\r\nabcde\r\n",
        "3\r\nabc0\r\n\r\n", "3\r\nabc\n", "fffffffffffffffff\r\n", "3;a\rb\r\n"}) {
    EXPECT_EQ(refused_with(chunked + body), 400) << body;
  }
}

TEST(HttpRequestParser, ShowsTheHeadBeforeTheBody) {
  HttpRequestParser parser(kLimits);
  feed(parser, kPost.substr(0, kPost.size() - 2), 10);
  ASSERT_EQ(parser.state(), State::body);
  EXPECT_EQ(parser.head().path, "/v1/completions");
  EXPECT_EQ(parser.content_length(), 5U);
  EXPECT_EQ(parser.body_bytes(), 3U);
}

TEST(HttpRequestParser, TellsWhenAClientWaitsForContinue) {
  HttpRequestParser parser(kLimits);
  feed(parser, "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n",
       1000);
  ASSERT_EQ(parser.state(), State::body);
  EXPECT_TRUE(parser.expects_continue());
}

TEST(HttpRequestParser, DecodesPaths) {
  const auto path = [](const std::string& target) {
    HttpRequestParser parser(kLimits);
    feed(parser, "GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n", 1000);
    return parser.state() == State::complete ? parser.take().path : "refused";
  };
  EXPECT_EQ(path("/v1/models/a%2Fb%20c"), "/v1/models/a/b c");
  EXPECT_EQ(path("/a%zz%4"), "/a%zz%4");
  EXPECT_EQ(path("http://host:80/v1/models?x"), "/v1/models");
  EXPECT_EQ(path("/a#b"), "/a");
}

TEST(HttpRequestParser, RefusesWhatIsTooLarge) {
  const std::string head = "GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(600, 'x');
  EXPECT_EQ(refused_with(head), 431) << "also when it does not end";
  EXPECT_EQ(refused_with(head + "\r\n\r\n"), 431);
  EXPECT_EQ(refused_with(head, 1), 431);
  EXPECT_EQ(refused_with("GET /" + std::string(600, 'x')), 431);
  EXPECT_EQ(refused_with("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 65\r\n\r\n"), 413);
  EXPECT_EQ(refused_with("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n" +
                         std::string(65, 'x') + "\r\n0\r\n\r\n"),
            413);
}

TEST(HttpRequestParser, RefusesWhatIsNoHttp) {
  const char* const texts[] = {
      "nonsense\r\n\r\n",
      "GET /\r\n\r\n",
      "GET / HTTP/2.0\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\nA\x01: b\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: "
      "chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: "
      "5\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
      "\x16\x03\x01\x02\x01\x01",  // a TLS client
  };
  for (const char* text : texts) {
    EXPECT_EQ(refused_with(text), 400) << text;
  }
}

TEST(HttpRequestParser, SurvivesAnyBytes) {
  const std::string seeds[] = {
      kPost,
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
      "GET /x%20y?z HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n"};
  for (uint32_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string text = seeds[random() % 3] + seeds[random() % 3];
    for (uint32_t n = random() % 8; n > 0; --n) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 3);
          break;
        default:
          text.insert(at, 1 + random() % 3, static_cast<char>(random()));
      }
    }
    HttpRequestParser parser(kLimits);
    std::string inbox;
    std::size_t sent = 0;
    while (sent < text.size() && parser.state() != State::refused) {
      const std::size_t n = std::min<std::size_t>(1 + random() % 40, text.size() - sent);
      inbox += text.substr(sent, n);
      sent += n;
      while (true) {
        inbox.erase(0, parser.feed(inbox));
        if (parser.state() != State::complete) {
          break;
        }
        ASSERT_LE(parser.take().body.size(), kLimits.body_bytes);
      }
    }
    ASSERT_LE(inbox.size(), kLimits.header_bytes + 40);
  }
}

TEST(HttpReply, PrintsAHead) {
  HttpReply reply;
  reply.body = "12345";
  reply.headers = {{"X", "y"}};
  const std::string head = print_head(reply, {}, true);
  EXPECT_THAT(head, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, testing::HasSubstr("\r\nContent-Length: 5\r\n"));
  EXPECT_THAT(head, testing::HasSubstr("\r\nX: y\r\n"));
  EXPECT_THAT(head, testing::ContainsRegex("Date: [A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} "
                                           "[0-9]{2}:[0-9]{2}:[0-9]{2} GMT\r\n"));
  EXPECT_THAT(head, testing::EndsWith("Connection: keep-alive\r\n\r\n"));
  reply.streamed = true;
  EXPECT_THAT(print_head(reply, {}, true), testing::HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_EQ(print_chunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
}

}  // namespace
}  // namespace tessera
