#include "tests/load/stub_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "load/request/json_text.h"

namespace tessera::load {
namespace {

using nlohmann::json;

constexpr size_t kPrefixBytes = 40;  // prompts that begin alike
constexpr const char* kObject = "chat.completion.chunk";
constexpr size_t kKeptBytes = 1 << 20;

bool send_all(int socket, const std::string& bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = ::send(socket, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

bool send_reply(int socket, int status, const std::string& body, const std::string& headers = {}) {
  return send_all(socket, "HTTP/1.1 " + std::to_string(status) +
                              " X\r\nContent-Length: " + std::to_string(body.size()) +
                              "\r\nContent-Type: application/json\r\n" + headers + "\r\n" + body);
}

bool send_chunk(int socket, const std::string& bytes) {
  char size[32];
  std::snprintf(size, sizeof(size), "%zx\r\n", bytes.size());
  return send_all(socket, size + bytes + "\r\n");
}

void pause(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Returns: the key that "What is the key of NAME?" asks for; empty if the prompt asks for none.
std::string key_asked_for(const std::string& prompt) {
  const std::string question = "What is the key of ";
  const size_t at = prompt.rfind(question);
  if (at == std::string::npos) return "";
  const std::string name =
      prompt.substr(at + question.size(), prompt.size() - at - question.size() - 1);
  const std::string fact = "The key of " + name + " is ";
  const size_t told = prompt.find(fact);
  return told == std::string::npos ? "" : prompt.substr(told + fact.size(), 5);
}

// Returns: the text of a message's content: a string, or a list whose first part is text.
std::string text_of(const json& content) {
  return content.is_array() ? content.at(0).value("text", std::string())
                            : content.get<std::string>();
}

std::string event(const std::string& text, bool count) {
  json choice = {{"index", 0}, {"delta", {{"content", text}}}, {"finish_reason", nullptr}};
  if (count) choice["logprobs"] = {{"content", {{{"token", text}, {"logprob", 0}}}}};
  return "data: " + print_json({{"object", kObject}, {"choices", {choice}}}) + "\n\n";
}

}  // namespace

StubServer::StubServer(StubLies lies, uint16_t port) : lies_(lies) {
  listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_, 4096) != 0) {
    std::perror("stub");
    std::abort();
  }
  socklen_t size = sizeof(address);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept(); });
}

StubServer::~StubServer() {
  stopping_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  ::close(listener_);
  {
    const std::lock_guard lock(mutex_);
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
}

std::string StubServer::url() const {
  return "http://127.0.0.1:" + std::to_string(port_);
}

void StubServer::accept() {
  while (true) {
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0 || stopping_) return;
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ++accepted_;
    {
      const std::lock_guard lock(mutex_);
      sockets_.push_back(socket);
    }
    threads_.emplace_back([this, socket] { serve(socket); });
  }
}

void StubServer::serve(int socket) {
  std::string inbox;
  char buffer[65536];
  while (true) {
    size_t head_end;
    while ((head_end = inbox.find("\r\n\r\n")) == std::string::npos) {
      const ssize_t n = ::recv(socket, buffer, sizeof(buffer), 0);
      if (n <= 0) break;
      inbox.append(buffer, static_cast<size_t>(n));
    }
    if (head_end == std::string::npos) break;
    const std::string head = inbox.substr(0, head_end + 4);
    const size_t length_at = head.find("Content-Length: ");
    const size_t length = length_at == std::string::npos
                              ? 0
                              : static_cast<size_t>(std::atoll(head.c_str() + length_at + 16));
    while (inbox.size() < head.size() + length) {
      const ssize_t n = ::recv(socket, buffer, sizeof(buffer), 0);
      if (n <= 0) break;
      inbox.append(buffer, static_cast<size_t>(n));
    }
    if (inbox.size() < head.size() + length) break;
    const std::string body = inbox.substr(head.size(), length);
    inbox.erase(0, head.size() + length);
    if (!answer(socket, head, body)) break;
  }
  const std::lock_guard lock(mutex_);
  sockets_.erase(std::find(sockets_.begin(), sockets_.end(), socket));
  ::close(socket);
}

bool StubServer::answer(int socket, const std::string& head, const std::string& body) {
  if (head.rfind("GET /v1/models", 0) == 0) {
    return send_reply(socket, 200, R"({"data": [{"id": "stub", "owned_by": "tessera"}]})");
  }
  if (head.rfind("GET /health", 0) == 0) {
    return send_reply(socket, 200, "{}");
  }
  if (head.rfind("GET /metrics", 0) == 0) {
    if (lies_.hide_metrics && requests_ > lies_.honest_requests) {
      return send_reply(socket, 500, "{}");
    }
    const bool leaked = lies_.leak_pages && requests_ > lies_.honest_requests;
    return send_reply(socket, 200,
                      std::string("# stub\nvllm:num_requests_running{model_name=\"stub\"} 0\n"
                                  "vllm:num_requests_waiting 0\n"
                                  "tessera:kv_bytes{format=\"k8v4\",state=\"private\"} ") +
                          (leaked ? "6656" : "0") + "\n");
  }
  if (head.rfind("POST /v1/chat/completions", 0) != 0) {
    send_reply(socket, 400, R"({"error": {"message": "no such route"}})");
    return false;
  }
  const int64_t number = ++requests_;
  const StubLies lies = number > lies_.honest_requests ? lies_ : StubLies{};
  if (lies.keep_memory) {
    const std::lock_guard lock(mutex_);
    kept_.emplace_back(kKeptBytes, 'k');
  }
  if (lies.reject_every > 0 && number % lies.reject_every == 0) {
    return send_reply(socket, 429, R"({"error": {"message": "busy"}})", "Retry-After: 1\r\n");
  }
  if (number == lies.stall_after) {
    const std::lock_guard all(mutex_);
    pause(lies.stall_seconds);
  }
  return stream(socket, body, lies);
}

std::string StubServer::text_for(const std::string& prompt, const StubLies& lies) {
  std::string key = key_asked_for(prompt);
  const std::lock_guard lock(mutex_);
  if (key.empty()) {
    salt_ += lies.change_under_load ? 1 : 0;
    return "word" + std::to_string(std::hash<std::string>()(prompt) % 1000) +
           (lies.change_under_load ? std::to_string(salt_) : "");
  }
  const std::string first =
      first_answers_.emplace(prompt.substr(0, kPrefixBytes), key).first->second;
  const std::string before = std::exchange(previous_answer_, key);
  if (lies.swap_answers && !before.empty()) return before;
  return lies.stale_prefix ? first : key;
}

bool StubServer::stream(int socket, const std::string& body, const StubLies& lies) {
  const json request = parse_json(body);
  const std::string prompt = text_of(request["messages"].back()["content"]);
  const bool count = request.value("logprobs", false);
  const int tokens = request.value("max_tokens", request.value("max_completion_tokens", 8));
  const std::string text = text_for(prompt, lies);
  send_all(socket,
           "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
           "\r\n");
  if (lies.early_empty_event) send_chunk(socket, event("", false));
  if (lies.delay_seconds > 0) pause(lies.delay_seconds);
  for (int i = 0; i < tokens; ++i) {
    if (lies.lose_token && i == tokens / 2) continue;
    if (lies.cut_short && i == tokens / 2) return false;
    if (i > 0 && lies.gap_seconds > 0) pause(lies.gap_seconds);
    if (lies.not_json && i == tokens / 2) send_chunk(socket, "data: {\"choices\": [\n\n");
    if (!send_chunk(socket, event(i == 0 ? text : " a", count))) return false;
  }
  int64_t prompt_tokens = 0;
  for (const json& message : request["messages"]) {
    const std::string words = text_of(message["content"]);
    prompt_tokens += std::count(words.begin(), words.end(), ' ') + 1;
  }
  const int completion = tokens + (lies.wrong_usage ? 1 : 0);
  const json last = {
      {"object", kObject},
      {"choices", {{{"index", 0}, {"delta", json::object()}, {"finish_reason", "length"}}}},
      {"usage",
       {{"prompt_tokens", prompt_tokens},
        {"completion_tokens", completion},
        {"total_tokens", prompt_tokens + completion}}}};
  return send_chunk(socket, "data: " + print_json(last) + "\n\n" +
                                (lies.no_end_mark ? "" : "data: [DONE]\n\n")) &&
         send_all(socket, "0\r\n\r\n");
}

}  // namespace tessera::load
