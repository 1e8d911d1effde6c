// The chat page.
#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "server/http/route_table.h"
#include "server/web/chat_page.h"

namespace tessera {
namespace {

// Returns: the source expressions of the page's own scripts, by their hashes (CSP 3, section 2.3).
// A script that gets into the page by other ways does not run.
std::string script_sources(std::string_view page) {
  constexpr std::string_view kBegin = "<script>";
  std::string sources;
  for (std::size_t at = page.find(kBegin); at != std::string_view::npos;) {
    const std::string_view script = page.substr(at + kBegin.size());
    const std::string_view text = script.substr(0, script.find("</script>"));
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash);
    sources +=
        " 'sha256-" + absl::Base64Escape({reinterpret_cast<const char*>(hash), sizeof(hash)}) + "'";
    at = page.find(kBegin, at + kBegin.size() + text.size());
  }
  return sources;
}

}  // namespace

HttpReply answer_page() {
  static const std::string policy =
      "default-src 'none'; script-src" + script_sources(chat_page()) +
      "; style-src 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
  HttpReply reply;
  reply.content_type = "text/html; charset=utf-8";
  reply.headers = {{"Content-Security-Policy", policy},
                   {"X-Frame-Options", "DENY"},
                   {"Referrer-Policy", "no-referrer"}};
  reply.body = chat_page();
  return reply;
}

}  // namespace tessera
