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

// Why a compressed body is not read.
struct NotInflated {
  int status = 400;
  std::string reason;
};

// Inflates a body of the coding gzip or deflate (RFC 1950 and 1952) in place. Takes time in
// proportion to the result, of at most `max_bytes`. take_room: called before the result grows, with
// its bytes; false: they are not to be had.
// Returns: nothing if the body is inflated.
std::optional<NotInflated> inflate_body(std::string& body, std::size_t max_bytes,
                                        const std::function<bool(std::size_t)>& take_room);

}  // namespace tessera
