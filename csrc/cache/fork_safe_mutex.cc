#include "cache/fork_safe_mutex.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace torch_tpu::cache {

namespace {

// Never destroyed: a thread may outlive the static destructors.
struct Registry {
  std::mutex mutex;
  std::vector<ForkSafeMutex*> all;

  static Registry& get() {
    static Registry* registry = [] {
      auto* created = std::make_unique<Registry>().release();
      pthread_atfork(&lock_all, &unlock_all, &unlock_all);
      return created;
    }();
    return *registry;
  }

  static void lock_all() {
    Registry& r = get();
    r.mutex.lock();
    for (ForkSafeMutex* m : r.all) m->lock();
  }
  static void unlock_all() {
    Registry& r = get();
    for (ForkSafeMutex* m : r.all) m->unlock();
    r.mutex.unlock();
  }
};

}  // namespace

ForkSafeMutex::ForkSafeMutex() {
  Registry& r = Registry::get();
  const std::lock_guard lock(r.mutex);
  r.all.push_back(this);
}

ForkSafeMutex::~ForkSafeMutex() {
  Registry& r = Registry::get();
  const std::lock_guard lock(r.mutex);
  r.all.erase(std::find(r.all.begin(), r.all.end(), this));
}

}  // namespace torch_tpu::cache
