// Sorts the jobs that have not ended by what is to be done about them, so that a pass of the
// control loop touches only those that something has happened to, however many there are.
//
// Holds ids only. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/v1/job.pb.h"

namespace terrace {

class JobIndex {
 public:
  // Takes a job that is new or has changed.
  void Put(const v1::Job& job);
  void Erase(std::string_view id);

  // Jobs that have a gang or the rest of one: STARTING, RUNNING or RECOVERING.
  const std::set<std::string>& with_gang() const { return with_gang_; }
  // Jobs that have a plan and wait to be placed, by the number of their submission.
  const std::map<int64_t, std::string>& waiting() const { return waiting_; }
  // Jobs that get a plan, or a new one, as soon as a worker could hold them.
  const std::set<std::string>& unplanned() const { return unplanned_; }
  // Jobs that wait for a smaller layout.
  const std::set<std::string>& shrinking() const { return shrinking_; }
  // Jobs that run and may have another number of workers.
  const std::set<std::string>& elastic() const { return elastic_; }
  // All of them, by the number of their submission.
  const std::map<int64_t, std::string>& by_number() const { return by_number_; }
  // Those of with_gang() whose gang is, or was, placed on that worker.
  const std::set<std::string>& On(std::string_view worker) const;
  // A job that writes its checkpoints into this directory; empty: none does. The path has no slash
  // at its end.
  std::string_view WriterTo(std::string_view directory) const;

  // Jobs that start only after that one.
  std::vector<std::string> DependentsOf(std::string_view id) const;

  // Removes the slash that a path may have at its end.
  static std::string_view DirectoryName(std::string_view path);

 private:
  struct Known {
    int64_t number = 0;
    int64_t epoch = -1;                // of `workers`
    std::vector<std::string> workers;  // of its gang; empty: it has none
    std::string directory;
    std::vector<std::string> after;  // jobs
  };

  void Place(const v1::Job& job, bool has_gang, Known* known);
  void TakeFromWorkers(const std::string& id, Known* known);

  std::map<std::string, Known, std::less<>> known_;
  std::map<int64_t, std::string> by_number_;
  std::set<std::string> with_gang_;
  std::map<int64_t, std::string> waiting_;
  std::set<std::string> unplanned_;
  std::set<std::string> shrinking_;
  std::set<std::string> elastic_;
  std::map<std::string, std::set<std::string>, std::less<>> by_worker_;
  std::multimap<std::string, std::string, std::less<>> by_directory_;
  std::multimap<std::string, std::string, std::less<>> dependents_;  // by the job before them
  const std::set<std::string> none_;
};

}  // namespace terrace
