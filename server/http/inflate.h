#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Content codings of a request's body.

// Returns: true if a body of this Content-Encoding is read: as it is, gzip, or deflate.
bool is_read_coding(std::string_view coding);

// Returns: true if the body is compressed. Requires: is_read_coding.
bool is_compressed(std::string_view coding);

// The reason that a compressed body is refused, with the HTTP status.
struct NotInflated {
  int status = 400;
  std::string reason;
};

// Inflates a body of the coding gzip (RFC 1952) or deflate (RFC 1950) in place. Takes time in
// proportion to the result, which has at most `max_bytes`. take_room: called with the bytes of
// the result before it grows; false if no memory is left for them.
// Returns: nothing if the body is inflated, otherwise the reason.
std::optional<NotInflated> inflate_body(std::string& body, std::size_t max_bytes,
                                        const std::function<bool(std::size_t)>& take_room);

}  // namespace tessera
