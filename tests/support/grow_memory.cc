// A library to preload into rank processes: their bytes outside the arenas grow as those of a
// leaking library would.
//
// Environment: GROW_MEMORY names a file that holds a number of MiB. From the moment it is there,
// each process whose name is that in GROW_MEMORY_IN takes so much once, writes to all of it and
// keeps it; one that starts later takes it at its start. What a file of that name with ".once"
// behind it holds is taken by one process only, the first to find it, after the other.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace {

constexpr auto kPoll = std::chrono::milliseconds(10);

void Take(const std::string& path) {
  size_t mib = 0;
  while (!(std::ifstream(path) >> mib)) std::this_thread::sleep_for(kPoll);
  const size_t bytes = mib << 20;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) std::memset(memory, 1, bytes);
}

void Grow(const std::string& path) {
  Take(path);
  const std::string own = path + ".taken-by-" + std::to_string(getpid());
  while (std::rename((path + ".once").c_str(), own.c_str()) != 0)
    std::this_thread::sleep_for(kPoll);
  Take(own);
}

__attribute__((constructor)) void Start() {
  const char* path = std::getenv("GROW_MEMORY");
  const char* name = std::getenv("GROW_MEMORY_IN");
  if (path == nullptr || name == nullptr) return;
  if (std::strcmp(program_invocation_short_name, name) != 0) return;
  std::thread(Grow, std::string(path)).detach();
}

}  // namespace
