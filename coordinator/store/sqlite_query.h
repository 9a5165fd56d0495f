// One prepared statement of a SqliteStore, for the files that it is made of.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/sqlite_store.h"

namespace terrace {

// One prepared statement with its parameters: bind in order, then Next until it says false. Of one
// text there is at most one at a time. Thread-compatible.
class SqliteStore::Query {
 public:
  Query(const SqliteStore& store, std::string_view sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(store.mutex_)
      : store_(store), statement_(store.Prepared(sql)) {}
  ~Query() {
    if (statement_ == nullptr) return;
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // For the next row of parameters.
  Query& Again() {
    sqlite3_reset(statement_);
    bound_ = 0;
    return *this;
  }

  // The bytes must outlive the query.
  Query& Text(std::string_view value) {
    sqlite3_bind_text(statement_, ++bound_, value.data(), static_cast<int>(value.size()),
                      SQLITE_STATIC);
    return *this;
  }
  Query& Blob(std::string_view value) {
    sqlite3_bind_blob64(statement_, ++bound_, value.data(), value.size(), SQLITE_STATIC);
    return *this;
  }
  Query& Int(int64_t value) {
    sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }

  // Steps to the next row; false when there is none.
  absl::StatusOr<bool> Next(std::string_view doing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_) {
    if (statement_ == nullptr) return store_.Error(doing);
    const int code = sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return store_.Error(doing);
  }
  absl::Status Run(std::string_view doing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_) {
    return Next(doing).status();
  }

  int64_t ColumnInt(int column) const { return sqlite3_column_int64(statement_, column); }
  // Valid until the next call of Next.
  std::string_view ColumnBlob(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    return {static_cast<const char*>(data),
            static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }
  template <typename Message>
  absl::Status ColumnMessage(int column, Message* message) const {
    const std::string_view bytes = ColumnBlob(column);
    if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return absl::OkStatus();
    }
    return store_.Unreadable();
  }

 private:
  const SqliteStore& store_;
  sqlite3_stmt* const statement_;
  int bound_ = 0;
};

}  // namespace terrace
