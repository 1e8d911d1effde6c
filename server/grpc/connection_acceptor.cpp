#include "server/grpc/connection_acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// A connection is closed for a new one only if nothing has come from it for this long.
constexpr uint32_t kLeastSilence = 1'000;  // milliseconds

// Pause if there is no room for a connection, or no descriptor.
constexpr int kPause = 50;  // milliseconds

constexpr std::chrono::seconds kWarnInterval{10};

// Returns: the inode of a descriptor; nothing if it is closed.
std::optional<uint64_t> inode_of(int descriptor) {
  struct stat state {};
  return fstat(descriptor, &state) == 0 ? std::optional<uint64_t>(state.st_ino) : std::nullopt;
}

// Returns: milliseconds since data came from the client.
uint32_t silence_of(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  return getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_last_data_recv
                                                                          : 0;
}

int32_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Returns: a socket that listens, or -1 with errno.
int listen_on(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) {
    return -1;
  }
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // inherited by connections
  if (bind(socket, address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket, SOMAXCONN) == 0) {
    return socket;
  }
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::listen(
    const std::string& address, int32_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failed != 0) {
    return absl::UnavailableError(gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  const int socket = listen_on(*found);
  if (socket < 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return std::unique_ptr<ConnectionAcceptor>(new ConnectionAcceptor(socket, wake, port_of(socket)));
}

ConnectionAcceptor::~ConnectionAcceptor() {
  stop();
  ::close(socket_);
  ::close(wake_);
}

void ConnectionAcceptor::start(
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server,
    std::size_t max_connections) {
  server_ = std::move(server);
  max_connections_ = max_connections;
  thread_ = std::thread([this] { run(); });
}

void ConnectionAcceptor::stop() {
  if (!thread_.joinable()) {
    return;
  }
  const uint64_t one = 1;
  while (::write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void ConnectionAcceptor::close_connections() {
  for (const Connection& connection : connections_) {
    if (inode_of(connection.descriptor) == connection.inode) {
      shutdown(connection.descriptor, SHUT_RDWR);  // gRPC notices, and closes it
    }
  }
  connections_.clear();
}

void ConnectionAcceptor::run() {
  pollfd polled[] = {{.fd = wake_, .events = POLLIN, .revents = 0},
                     {.fd = socket_, .events = POLLIN, .revents = 0}};
  while (true) {
    if (poll(polled, 2, -1) < 0 && errno != EINTR) {
      spdlog::error("gRPC cannot wait for connections: {}", std::strerror(errno));
      break;
    }
    if ((polled[0].revents & POLLIN) != 0) {
      break;
    }
    if ((polled[1].revents & POLLIN) != 0 && !(make_room() && accept_one())) {
      poll(polled, 1, kPause);
    }
  }
  // Connections that wait in the kernel's queue would be reset, and a proxy that has sent a call on
  // one does not send it again. Clients that connect without end must not keep the port open.
  for (int waiting = SOMAXCONN; waiting > 0 && poll(&polled[1], 1, 0) > 0; --waiting) {
    if (!make_room() || !accept_one()) {
      break;
    }
  }
  shutdown(socket_, SHUT_RDWR);
}

// Returns: false if no connection could be accepted.
bool ConnectionAcceptor::accept_one() {
  const int descriptor = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor < 0) {
    if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
      static auto next_warning = std::chrono::steady_clock::time_point();
      const auto now = std::chrono::steady_clock::now();
      if (now >= next_warning) {
        spdlog::warn("gRPC cannot accept a connection: {}", std::strerror(errno));
        next_warning = now + kWarnInterval;
      }
      return false;
    }
    return true;
  }
  connections_.push_back({descriptor, inode_of(descriptor).value_or(0)});
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = socket_;
  connection.fd = descriptor;
  server_->HandleNewConnection(&connection);
  return true;
}

// Returns: false if there are too many connections, none of them silent.
bool ConnectionAcceptor::make_room() {
  if (connections_.size() < max_connections_) {
    return true;
  }
  std::erase_if(connections_, [](const Connection& connection) {
    return inode_of(connection.descriptor) != connection.inode;
  });
  if (connections_.size() < max_connections_) {
    return true;
  }
  const auto silent = std::max_element(connections_.begin(), connections_.end(),
                                       [](const Connection& a, const Connection& b) {
                                         return silence_of(a.descriptor) < silence_of(b.descriptor);
                                       });
  if (silence_of(silent->descriptor) < kLeastSilence ||
      inode_of(silent->descriptor) != silent->inode) {
    return false;
  }
  shutdown(silent->descriptor, SHUT_RDWR);  // gRPC notices, and closes it
  connections_.erase(silent);
  return true;
}

}  // namespace tessera
