#pragma once

#include <memory>

#include "eval/lab/method.h"
#include "eval/run/subject.h"

namespace tessera::lab {

// Returns: a method as the subject of an evaluation. It runs trials with turns alone: a prompt is
// computed once, and each trial with that prompt continues from a fork of it, token by token.
// `model` outlives it.
std::unique_ptr<Subject> make_lab_subject(NamedMethod method, Model& model);

}  // namespace tessera::lab
