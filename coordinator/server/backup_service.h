// BackupService (proto/v1/backup.proto): a copy of the store while the coordinator serves.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "base/loop.h"
#include "coordinator/server/call_guard.h"
#include "coordinator/store/sqlite_store.h"

namespace grpc {
class Service;
}

namespace terrace {

// The copy is a file in `directory` until it has been sent. All but that are borrowed.
std::unique_ptr<grpc::Service> MakeBackupService(Loop& loop, SqliteStore& store,
                                                 const CallGuard& guard, std::string directory);

}  // namespace terrace
