// An evaluation as `terrace evaluate` prints it, in 80 columns, and as JSON: the message with its
// own field names, settings as an object.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/evaluation.pb.h"

namespace terrace {

std::string EvaluationText(const v1::Evaluation& evaluation);
// Ends with a newline.
std::string EvaluationJson(const v1::Evaluation& evaluation);

}  // namespace terrace
