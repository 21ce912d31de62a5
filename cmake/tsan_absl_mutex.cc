// Makes ThreadSanitizer see absl's locks. Linked into every program of a ThreadSanitizer build.
//
// Distributions build absl without instrumentation, so that ThreadSanitizer does not know that
// absl::Mutex orders anything and reports a race on everything a Mutex guards. These definitions
// come before those of the shared library; each calls the real one and tells ThreadSanitizer what
// is ordered by it. Calls from other libraries, gRPC's among them, come here too.

#include <dlfcn.h>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace {

#define LOWERD_STRING_(x) #x
#define LOWERD_STRING(x) LOWERD_STRING_(x)

// `prefix` and `suffix` are what stands around absl's inline namespace in a mangled name.
void* Real(const char* prefix, const char* suffix) {
  const std::string space = LOWERD_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  return ::dlsym(RTLD_NEXT, (prefix + std::to_string(space.size()) + space + suffix).c_str());
}

// Calls the real function. It evaluates conditions of other threads while it holds the lock, at a
// time that only it knows: these accesses are not looked at.
template <typename Result, typename... Arguments>
Result Call(void* function, Arguments... arguments) {
  struct Ignore {
    Ignore() {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Ignore() {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
  } ignore;
  return reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

#define LOWERD_REAL(suffix) static void* const real = Real("_ZN4absl", suffix)

void Mutex::Lock() {
  LOWERD_REAL("5Mutex4LockEv");
  Call<void>(real, this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  LOWERD_REAL("5Mutex6UnlockEv");
  __tsan_release(this);
  Call<void>(real, this);
}

bool Mutex::TryLock() {
  LOWERD_REAL("5Mutex7TryLockEv");
  const bool locked = Call<bool>(real, this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  LOWERD_REAL("5Mutex10ReaderLockEv");
  Call<void>(real, this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  LOWERD_REAL("5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  Call<void>(real, this);
}

bool Mutex::ReaderTryLock() {
  LOWERD_REAL("5Mutex13ReaderTryLockEv");
  const bool locked = Call<bool>(real, this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::LockWhen(const Condition& condition) {
  LOWERD_REAL("5Mutex8LockWhenERKNS0_9ConditionE");
  __tsan_release(this);
  Call<void>(real, this, &condition);
  __tsan_acquire(this);
}

void Mutex::Await(const Condition& condition) {
  LOWERD_REAL("5Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  Call<void>(real, this, &condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  LOWERD_REAL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  const bool result = Call<bool>(real, this, &condition, timeout);
  __tsan_acquire(this);
  return result;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  LOWERD_REAL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  const bool result = Call<bool>(real, this, &condition, deadline);
  __tsan_acquire(this);
  return result;
}

void CondVar::Wait(Mutex* mutex) {
  LOWERD_REAL("7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  Call<void>(real, this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  LOWERD_REAL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool result = Call<bool>(real, this, mutex, timeout);
  __tsan_acquire(mutex);
  return result;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  LOWERD_REAL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool result = Call<bool>(real, this, mutex, deadline);
  __tsan_acquire(mutex);
  return result;
}

void Notification::Notify() {
  LOWERD_REAL("12Notification6NotifyEv");
  __tsan_release(this);
  Call<void>(real, this);
}

void Notification::WaitForNotification() const {
  static void* const real = Real("_ZNK4absl", "12Notification19WaitForNotificationEv");
  Call<void>(real, this);
  __tsan_acquire(const_cast<Notification*>(this));
}

ABSL_NAMESPACE_END
}  // namespace absl
