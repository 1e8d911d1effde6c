#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Incremental decoder of a chunked body (RFC 9112, section 7.1). Chunk extensions and trailer
// fields are skipped, within a limit of bytes for each line and for all trailers. The result does
// not depend on the pieces in which bytes arrive. (Beast 1.81 waits for ever for the end of a last
// chunk with an extension, if its line arrives in pieces, and bounds no line.)
class ChunkedBody {
 public:
  enum class State { incomplete, complete, malformed, too_large };

  explicit ChunkedBody(std::size_t line_bytes) : line_bytes_(line_bytes) {}

  // Appends decoded bytes to `body` until it has `max_body` of them.
  // Returns: number of bytes consumed; all of them while the state is `incomplete`.
  std::size_t feed(std::string_view bytes, std::size_t max_body, std::string& body);

  State state() const { return state_; }

 private:
  enum class Part { line, data, data_end, trailers };

  void take_line(std::size_t max_body, std::size_t body);

  const std::size_t line_bytes_;
  State state_ = State::incomplete;
  Part part_ = Part::line;
  std::string line_;        // the part of a line that has arrived
  std::uint64_t left_ = 0;  // bytes of the chunk that have not arrived
  std::size_t trailer_bytes_ = 0;
};

}  // namespace tessera
