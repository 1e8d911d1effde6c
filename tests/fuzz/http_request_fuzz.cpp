// Input: the size of the pieces (first byte), then the bytes of a connection. The parsed requests
// must not depend on the size. The position at which a head is refused may depend on it: Beast
// checks a head that arrives in pieces only when it is complete.
#include <algorithm>

#include "base/check.h"
#include "server/http/request_parser.h"
#include "tests/fuzz/fuzz_target.h"

namespace tessera {
namespace {

constexpr HttpRequestParser::Limits kLimits{.header_bytes = 1024, .body_bytes = 512};

std::vector<HttpRequest> read(std::string_view bytes, size_t at_a_time) {
  HttpRequestParser parser(kLimits);
  std::vector<HttpRequest> requests;
  size_t begin = 0;
  size_t end = std::min(at_a_time, bytes.size());
  while (true) {
    begin += parser.feed(bytes.substr(begin, end - begin));
    TESSERA_CHECK(begin <= end, "used more than there is");
    if (parser.state() == HttpRequestParser::State::body) (void)parser.expects_continue();
    if (parser.state() == HttpRequestParser::State::refused) {
      TESSERA_CHECK(!parser.refusal().reason.empty(), "refused without a reason");
      return requests;
    }
    if (parser.state() == HttpRequestParser::State::complete) {
      requests.push_back(parser.take());
      TESSERA_CHECK(requests.back().body.size() <= kLimits.body_bytes, "body too long");
    } else if (end == bytes.size()) {
      return requests;
    } else {
      end = std::min(end + at_a_time, bytes.size());
    }
  }
}

bool same(const HttpRequest& a, const HttpRequest& b) {
  return a.method == b.method && a.path == b.path && a.headers == b.headers && a.body == b.body &&
         a.http_1_1 == b.http_1_1 && a.keep_alive == b.keep_alive;
}

}  // namespace
}  // namespace tessera

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  if (size == 0) return 0;
  const std::string_view bytes = text_of(data + 1, size - 1);
  const auto whole = read(bytes, std::max<size_t>(bytes.size(), 1));
  const auto pieces = read(bytes, std::max<size_t>(data[0], 1));
  TESSERA_CHECK(std::equal(whole.begin(), whole.end(), pieces.begin(), pieces.end(), same),
                "pieces change the requests");
  return 0;
}
