// Who else hears warnings than the log. In a rank that is its job: what is warned of while a job
// starts or trains is said where somebody watches it.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

namespace terrace::log {

// Called with each warning from now on, after it is written, by the thread that warns; one that is
// empty ends that.
void ListenToWarnings(std::function<void(std::string_view)> listener);

// A warning that the listener does not hear: it has told of it, or cannot.
void WarnInLogOnly(std::string_view message);

}  // namespace terrace::log
