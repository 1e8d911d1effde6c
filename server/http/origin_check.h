#pragma once

#include <string>
#include <string_view>

#include "server/http/message.h"

namespace tessera {

// Checks against web pages that use a server without a user's knowledge: by requests across sites,
// or by a name of their own that they resolve to this machine (DNS rebinding).

// Returns: true if `authority` ("localhost:8080", "[::1]") names the machine itself: localhost, a
// name below it, or a loopback address.
bool is_loopback(std::string_view authority);

// Returns: true if the host of `authority` is in `hosts`, names separated by commas.
bool is_listed(std::string_view authority, std::string_view hosts);

// Returns: true if a browser reports that a page of another origin sent this: Sec-Fetch-Site, or in
// older browsers an Origin that is not the Host. Pages of `allowed_origin` ("*": of all) count as
// the server's own.
bool from_elsewhere(const HttpRequest& request, const std::string& allowed_origin);

}  // namespace tessera
