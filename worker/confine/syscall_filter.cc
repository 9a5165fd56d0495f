// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/syscall_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace terrace {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif
constexpr uint32_t kOtherTable = 0x40000000;  // of x86's 32-bit pointers: other numbers, same calls

constexpr RefusedCall kRefused[] = {
    {SYS_execve, "execve", "a rank starts no programs"},
    {SYS_execveat, "execveat", "a rank starts no programs"},
#ifdef SYS_fork
    {SYS_fork, "fork", "a rank starts no processes"},
    {SYS_vfork, "vfork", "a rank starts no processes"},
    {SYS_mknod, "mknod", "devices and FIFOs"},
    {SYS_link, "link", "names for files of others"},
    {SYS_iopl, "iopl", "ports of the machine"},
    {SYS_ioperm, "ioperm", "ports of the machine"},
    {SYS_modify_ldt, "modify_ldt", "faults of kernels"},
#endif
    {SYS_mknodat, "mknodat", "devices and FIFOs"},
    {SYS_linkat, "linkat", "names for files of others"},
    {SYS_ptrace, "ptrace", "other processes"},
    {SYS_process_vm_readv, "process_vm_readv", "other processes"},
    {SYS_process_vm_writev, "process_vm_writev", "other processes"},
    {SYS_kcmp, "kcmp", "other processes"},
    {438, "pidfd_getfd", "other processes"},
    {SYS_unshare, "unshare", "namespaces"},
    {SYS_setns, "setns", "namespaces"},
    {SYS_mount, "mount", "file systems"},
    {SYS_umount2, "umount2", "file systems"},
    {SYS_pivot_root, "pivot_root", "file systems"},
    {SYS_chroot, "chroot", "file systems"},
    {428, "open_tree", "file systems"},
    {429, "move_mount", "file systems"},
    {430, "fsopen", "file systems"},
    {431, "fsconfig", "file systems"},
    {432, "fsmount", "file systems"},
    {433, "fspick", "file systems"},
    {442, "mount_setattr", "file systems"},
    {SYS_quotactl, "quotactl", "file systems"},
    {SYS_swapon, "swapon", "file systems"},
    {SYS_swapoff, "swapoff", "file systems"},
    {SYS_fanotify_init, "fanotify_init", "file systems"},
    {SYS_open_by_handle_at, "open_by_handle_at", "files without their paths"},
    {SYS_name_to_handle_at, "name_to_handle_at", "files without their paths"},
    {SYS_bpf, "bpf", "faults of kernels"},
    {SYS_perf_event_open, "perf_event_open", "faults of kernels, other processes"},
    {SYS_userfaultfd, "userfaultfd", "faults of kernels"},
    {SYS_keyctl, "keyctl", "keys of the user"},
    {SYS_add_key, "add_key", "keys of the user"},
    {SYS_request_key, "request_key", "keys of the user"},
    {SYS_personality, "personality", "faults of kernels"},
    {SYS_vmsplice, "vmsplice", "faults of kernels"},
    {SYS_init_module, "init_module", "the kernel"},
    {SYS_finit_module, "finit_module", "the kernel"},
    {SYS_delete_module, "delete_module", "the kernel"},
    {SYS_kexec_load, "kexec_load", "the kernel"},
    {SYS_reboot, "reboot", "the machine"},
    {SYS_syslog, "syslog", "the kernel's log"},
    {SYS_acct, "acct", "the machine"},
    {SYS_settimeofday, "settimeofday", "the clock"},
    {SYS_clock_settime, "clock_settime", "the clock"},
    {SYS_clock_adjtime, "clock_adjtime", "the clock"},
    {SYS_adjtimex, "adjtimex", "the clock"},
    {SYS_sethostname, "sethostname", "the machine"},
    {SYS_setdomainname, "setdomainname", "the machine"},
    {SYS_vhangup, "vhangup", "terminals"},
};
constexpr long kClone3 = 435, kIoUringSetup = 425;

// A program of the kernel's packet filter: it loads a word of the call and walks on.
class Filter {
 public:
  void Load(size_t offset) { Add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void Return(uint32_t action) { Add(BPF_RET | BPF_K, action); }
  void Refuse(int error) { Return(SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)); }
  // Skips that many lines where the loaded word passes `test`, or where it does not.
  void SkipIf(uint16_t test, uint32_t value, uint8_t skipped) {
    Add(static_cast<uint16_t>(BPF_JMP | test | BPF_K), value, skipped, 0);
  }
  void SkipUnless(uint16_t test, uint32_t value, uint8_t skipped) {
    Add(static_cast<uint16_t>(BPF_JMP | test | BPF_K), value, 0, skipped);
  }
  void RefuseCall(long number, int error) {
    SkipUnless(BPF_JEQ, static_cast<uint32_t>(number), 1);
    Refuse(error);
  }
  std::vector<sock_filter>& lines() { return lines_; }

 private:
  void Add(uint16_t code, uint32_t value, uint8_t if_true = 0, uint8_t if_false = 0) {
    lines_.push_back({code, if_true, if_false, value});
  }
  std::vector<sock_filter> lines_;
};

Filter MakeFilter(const AllowedCalls& allowed) {
  Filter filter;
  filter.Load(offsetof(seccomp_data, arch));
  filter.SkipIf(BPF_JEQ, kArchitecture, 1);
  filter.Refuse(EPERM);
  filter.Load(offsetof(seccomp_data, nr));
  filter.SkipUnless(BPF_JGE, kOtherTable, 1);
  filter.Refuse(EPERM);
  for (const RefusedCall& call : kRefused) {
    if (allowed.programs && call.number == SYS_execve) continue;
    filter.RefuseCall(call.number, EPERM);
  }
  if (!allowed.io_uring) filter.RefuseCall(kIoUringSetup, EPERM);
  if (!allowed.sockets) {
    filter.RefuseCall(SYS_socket, EPERM);
    filter.RefuseCall(SYS_socketpair, EPERM);
  }
  filter.RefuseCall(kClone3, ENOSYS);
  filter.SkipUnless(BPF_JEQ, SYS_clone, 3);
  filter.Load(offsetof(seccomp_data, args));  // the flags: low bytes first on both machines
  filter.SkipIf(BPF_JSET, CLONE_THREAD, 1);
  filter.Refuse(EPERM);
  filter.Return(SECCOMP_RET_ALLOW);
  return filter;
}

}  // namespace

bool HasSeccomp() {
  const uint32_t action = SECCOMP_RET_ERRNO;
  return kArchitecture != 0 && ::syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

std::span<const RefusedCall> RefusedCalls() { return kRefused; }

absl::StatusOr<bool> RefuseCalls(const AllowedCalls& allowed) {
  if (kArchitecture == 0) return false;
  Filter filter = MakeFilter(allowed);
  const sock_fprog program = {static_cast<unsigned short>(filter.lines().size()),
                              filter.lines().data()};
  // Without the flag kernels before 5.16 would slow down the arithmetic of the whole process.
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) ==
      0) {
    return true;
  }
  if (errno == ENOSYS || errno == EINVAL) return false;
  return absl::ErrnoToStatus(errno, "seccomp: cannot restrict this process");
}

}  // namespace terrace
