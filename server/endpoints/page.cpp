// The chat page and its icon.
#include "server/routes/route_table.h"
#include "server/web/chat_page.h"

namespace tessera {

HttpReply answer_page() {
  HttpReply reply;
  reply.content_type = "text/html; charset=utf-8";
  reply.headers = {{"Content-Security-Policy", std::string(chat_page_policy())},
                   {"X-Frame-Options", "DENY"},
                   {"Referrer-Policy", "no-referrer"},
                   {"Cache-Control", "no-cache"}};
  reply.body = chat_page();
  return reply;
}

HttpReply answer_icon() {
  HttpReply reply;
  reply.content_type = "image/svg+xml";
  reply.headers = {{"Content-Security-Policy", "default-src 'none'"},
                   {"Cache-Control", "max-age=86400"}};
  reply.body = chat_icon();
  return reply;
}

}  // namespace tessera
