#include "load/client/event_loop.h"

namespace tessera::load {

std::string_view name(ErrorClass error) {
  switch (error) {
    case ErrorClass::none:
      return "none";
    case ErrorClass::rejected:
      return "rejected";
    case ErrorClass::client_error:
      return "client_error";
    case ErrorClass::server_error:
      return "server_error";
    case ErrorClass::no_connection:
      return "no_connection";
    case ErrorClass::connection_lost:
      return "connection_lost";
    case ErrorClass::cut_short:
      return "cut_short";
    case ErrorClass::malformed:
      return "malformed";
    case ErrorClass::timed_out:
      return "timed_out";
    case ErrorClass::abandoned:
      return "abandoned";
    case ErrorClass::killed:
      return "killed";
  }
  return "none";
}

}  // namespace tessera::load
