#include "server/generation/finish_status.h"

#include "server/base/error.h"

namespace tessera {

absl::Status status_of(const Finish& finish) {
  switch (finish.reason) {
    case FinishReason::stop:
    case FinishReason::length:
      break;
    case FinishReason::cancelled:
      return finish.status.ok()
                 ? with_code(absl::UnavailableError("the server has cancelled this request"),
                             "cancelled")
                 : with_code(finish.status, "timeout");
    case FinishReason::failed:
      return finish.status.ok() ? absl::InternalError("the engine failed") : finish.status;
  }
  return absl::OkStatus();
}

}  // namespace tessera
