// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/reach.h"

#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

struct SystemPath {
  const char* pattern;
  Reach reach;
};

// Not /etc as a whole, where keys lie; not /tmp and /home. Of /proc other processes' memory and
// environment stay closed: Landlock refuses whatever ptrace would be needed for.
constexpr SystemPath kSystem[] = {
    {"/usr", Reach::kRead},  // libraries, time zones, locales, CUDA
    {"/lib*", Reach::kRead},
    {"/opt/nvidia", Reach::kRead},
    {"/proc", Reach::kRead},  // processors, memory, the driver; of itself everything
    {"/sys", Reach::kRead},   // topology: NUMA, PCI, InfiniBand; control groups
    {"/etc/ld.so.*", Reach::kRead},
    {"/etc/localtime", Reach::kRead},
    {"/etc/nsswitch.conf", Reach::kRead},  // names of hosts
    {"/etc/host*", Reach::kRead},
    {"/etc/resolv.conf", Reach::kRead},
    {"/etc/gai.conf", Reach::kRead},
    {"/etc/services", Reach::kRead},
    {"/etc/protocols", Reach::kRead},
    {"/etc/passwd", Reach::kRead},  // names, no passwords
    {"/etc/group", Reach::kRead},
    {"/etc/ssl/openssl.cnf", Reach::kRead},
    {"/etc/nccl.conf", Reach::kRead},
    {"/etc/libibverbs.d", Reach::kRead},
    {"/etc/rdma", Reach::kRead},
    {"/run/systemd/resolve", Reach::kRead},  // where resolv.conf leads
    {"/dev/null", Reach::kDevice},
    {"/dev/zero", Reach::kDevice},
    {"/dev/full", Reach::kDevice},
    {"/dev/random", Reach::kDevice},
    {"/dev/urandom", Reach::kDevice},
    {"/dev/shm", Reach::kChange},      // flight recorders; NCCL's and CUDA's buffers between ranks
    {"/dev/nvidia*", Reach::kDevice},  // GPUs, unified memory, capabilities
    {"/dev/infiniband", Reach::kDevice},
    {"/dev/gdrdrv", Reach::kDevice},
    {"/tmp/nvidia-mps", Reach::kChange},  // of CUDA's multi-process service
};

std::vector<std::string> Matches(const char* pattern) {
  glob_t found = {};
  std::vector<std::string> paths;
  if (::glob(pattern, GLOB_NOSORT, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

// Folders of libraries that this process has loaded, and those that it looks into for more.
std::set<std::string> LibraryFolders() {
  std::set<std::string> folders;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos || line.find(".so", path) == std::string::npos) continue;
    folders.insert(fs::path(line.substr(path)).parent_path().string());
  }
  const char* const listed = std::getenv("LD_LIBRARY_PATH");
  for (const absl::string_view folder :
       absl::StrSplit(listed == nullptr ? "" : listed, ':', absl::SkipEmpty())) {
    if (folder[0] == '/') folders.insert(std::string(folder));
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.insert((program.parent_path().parent_path() / "lib").string());
  return folders;
}

}  // namespace

std::vector<ReachedPath> SystemPaths() {
  std::vector<ReachedPath> paths;
  for (const SystemPath& row : kSystem) {
    for (std::string& path : Matches(row.pattern)) paths.push_back({std::move(path), row.reach});
  }
  for (const std::string& folder : LibraryFolders()) paths.push_back({folder, Reach::kRead});
  if (const char* const mps = std::getenv("CUDA_MPS_PIPE_DIRECTORY"))
    paths.push_back({mps, Reach::kChange});
  return paths;
}

std::vector<ReachedPath> PathsOfPython(const std::string& python) {
  std::vector<ReachedPath> paths;
  for (const char* pattern : {"/usr", "/lib*", "/bin"}) {
    for (std::string& path : Matches(pattern)) paths.push_back({std::move(path), Reach::kRun});
  }
  for (const char* pattern : {"/etc/ld.so.*", "/etc/localtime", "/etc/python3*"}) {
    for (std::string& path : Matches(pattern)) paths.push_back({std::move(path), Reach::kRead});
  }
  for (const char* device : {"/dev/null", "/dev/urandom"})
    paths.push_back({device, Reach::kDevice});
  // An environment of its own: the folder above bin, and where its interpreter really lies.
  std::error_code error;
  for (const fs::path& program : {fs::path(python), fs::canonical(python, error)}) {
    const fs::path folder = program.parent_path();
    if (folder.filename() == "bin" && folder != "/bin")
      paths.push_back({folder.parent_path().string(), Reach::kRun});
  }
  return paths;
}

LandlockRules ReachOf(const v1::RankConfig& config, const JobRoots& roots) {
  LandlockRules rules = {.paths = SystemPaths(), .reads = roots.any()};
  const std::string& run = config.run_directory();
  rules.paths.push_back({run, Reach::kOwn});
  for (const char* shared : {"/../host_memory", "/../host_memory.lock"})
    rules.paths.push_back({run + shared, Reach::kChange});
  rules.paths.push_back({config.program_path(), Reach::kRead});
  for (const std::vector<std::string>* read : {&roots.data, &roots.checkpoint}) {
    for (const std::string& root : *read) rules.paths.push_back({root, Reach::kRead});
  }
  for (const SpecPath& path : PathsOf(config.spec())) {
    if (path.is_written) rules.paths.push_back({path.path, Reach::kChange});
  }
  return rules;
}

}  // namespace terrace
