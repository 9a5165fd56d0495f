// The kernel's own word on a process that its OOM killer has ended, for where no control group
// counts these kills.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

inline constexpr int64_t kOomRecordSeconds = 60;  // older records are of another process

// Whether /dev/kmsg, or what is given for it, has a record that says so. False where it may not be
// read; in a container with process numbers of its own the record has another number.
bool OomKillIsLogged(int64_t pid, int64_t now_since_boot_us, const std::string& path = "/dev/kmsg");

}  // namespace terrace
