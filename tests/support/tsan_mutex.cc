// Tells ThreadSanitizer what absl::Mutex orders. Debian's Abseil is not instrumented: what its
// mutexes guard would be reported as a race wherever it is used. This library is linked before
// Abseil into programs of the tsan preset and takes the place of its functions: each does what it
// did and says what it means. Nothing is suppressed: without a lock a race is a race
// (tests/unit/support/tsan_mutex_test.cc).
//
// A condition is evaluated only by the thread that waits for it, every kPoll. Inside Abseil those
// that unlock evaluate it too, where nobody can say so.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>
#include <time.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace {

constexpr timespec kPoll = {.tv_sec = 0, .tv_nsec = 200'000};

// The function of that name in Abseil.
template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool WaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) {
  while (!condition.Eval()) {
    if (deadline != absl::InfiniteFuture() && absl::Now() >= deadline) return false;
    mutex->Unlock();
    ::nanosleep(&kPoll, nullptr);
    mutex->Lock();
  }
  return true;
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const next = Next<void(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  next(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static auto* const next = Next<void(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  next(this);
}

bool Mutex::TryLock() {
  static auto* const next = Next<bool(Mutex*)>("_ZN4absl7debian35Mutex7TryLockEv");
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static auto* const next = Next<void(Mutex*)>("_ZN4absl7debian35Mutex10ReaderLockEv");
  next(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const next = Next<void(Mutex*)>("_ZN4absl7debian35Mutex12ReaderUnlockEv");
  __tsan_release(this);
  next(this);
}

void Mutex::LockWhen(const Condition& condition) {
  Lock();
  WaitUntil(this, condition, InfiniteFuture());
}

void Mutex::Await(const Condition& condition) { WaitUntil(this, condition, InfiniteFuture()); }

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return WaitUntil(this, condition, Now() + timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  return WaitUntil(this, condition, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const next =
      Next<void(CondVar*, Mutex*)>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  next(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const next = Next<bool(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool late = next(this, mutex, deadline);
  __tsan_acquire(mutex);
  return late;
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, Now() + timeout);
}

ABSL_NAMESPACE_END
}  // namespace absl
