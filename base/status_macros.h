#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TESSERA_RETURN_IF_ERROR(expression)                   \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

#define TESSERA_CONCAT_INNER(a, b) a##b
#define TESSERA_CONCAT(a, b) TESSERA_CONCAT_INNER(a, b)

// TESSERA_ASSIGN_OR_RETURN(auto value, f()): assigns the value of f(), or returns its error status.
#define TESSERA_ASSIGN_OR_RETURN(declaration, expression) \
  TESSERA_ASSIGN_OR_RETURN_INNER(TESSERA_CONCAT(result_, __LINE__), declaration, expression)

#define TESSERA_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                           \
  if (!result.ok()) {                                                   \
    return result.status();                                             \
  }                                                                     \
  declaration = std::move(result).value()
