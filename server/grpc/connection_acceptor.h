#pragma once

#include <grpcpp/server_builder.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// Accepts the connections of a gRPC server, up to a number. libgrpc's own listener has no such
// number, and stops for good when the process is once out of descriptors (1.51, tcp_server_posix).
//
// If there are too many connections, the one from which nothing has come for the longest time is
// closed for the new one. A client that gets tokens is not silent: it reports the bytes it has
// read, and answers pings.
class ConnectionAcceptor {
 public:
  // Returns: an acceptor that holds the port, and accepts nothing yet.
  // `address`: numeric, v4 or v6, or a host name. `port` 0: any free one.
  // Errors: Unavailable if the address is not one of this machine, or the port is taken.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> listen(const std::string& address,
                                                                    int32_t port);

  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  int32_t port() const { return port_; }

  // Passes connections to `server` from now on, on a thread of its own.
  void start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server,
             std::size_t max_connections);

  // Accepts the connections that clients have made already, closes the port and joins the thread.
  // Connections stay open.
  void stop();

  // Closes the open connections, so that their calls are cancelled. Requires: stop() was called.
  void close_connections();

 private:
  // A connection that was passed on. gRPC closes it without notice, and the number of the
  // descriptor is used again. The inode tells whether it is still the same socket.
  struct Connection {
    int descriptor = -1;
    uint64_t inode = 0;
  };

  ConnectionAcceptor(int socket, int wake, int32_t port)
      : socket_(socket), wake_(wake), port_(port) {}

  void run();
  bool accept_one();
  bool make_room();

  const int socket_;
  const int wake_;  // an eventfd, readable when the thread ends
  const int32_t port_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  std::size_t max_connections_ = 0;
  std::vector<Connection> connections_;  // of the thread
  std::thread thread_;
};

}  // namespace tessera
