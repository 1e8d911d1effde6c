// The chat page.
#include "server/http/route_table.h"
#include "server/web/chat_page.h"

namespace tessera {

HttpReply answer_page() {
  HttpReply reply;
  reply.content_type = "text/html; charset=utf-8";
  reply.body = chat_page();
  return reply;
}

}  // namespace tessera
