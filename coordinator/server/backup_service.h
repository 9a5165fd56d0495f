// BackupService (proto/v1/backup.proto): a copy of the store while the coordinator serves.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "base/loop.h"
#include "coordinator/store/sqlite_store.h"

namespace grpc {
class Service;
}

namespace terrace {

// The copy is a file in `directory` until it has been sent. Loop and store are borrowed.
std::unique_ptr<grpc::Service> MakeBackupService(Loop& loop, SqliteStore& store,
                                                 std::string directory);

}  // namespace terrace
