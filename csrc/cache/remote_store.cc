#include "cache/remote_store.h"

#include <cxxabi.h>

#include "cache/fork_safe_mutex.h"

namespace torch_tpu::cache {

namespace {

// What a hook throws, as a StoreError. An interpreter that ends may unwind the thread: let it.
template <class F>
auto call(const std::string& url, F&& f) {
  try {
    return f();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const StoreError&) {
    throw;
  } catch (const std::exception& error) {
    throw StoreError(StoreProblem::kUnreachable, url + ": " + error.what());
  } catch (...) {
    throw StoreError(StoreProblem::kUnreachable, url + ": unknown error");
  }
}

struct Factory {
  ForkSafeMutex mutex;
  RemoteStoreFactory make;  // guarded by the mutex

  static Factory& get() {  // never destroyed: background threads may be using it
    static Factory* factory = std::make_unique<Factory>().release();
    return *factory;
  }
};

class LazyStore : public Store {
 public:
  explicit LazyStore(std::string url) : url_(std::move(url)) {}

  std::optional<Blob> get(const std::string& name) override { return store()->get(name); }
  bool contains(const std::string& name) override { return store()->contains(name); }
  void put(const std::string& name, std::string_view bytes) override { store()->put(name, bytes); }
  void remove(const std::string& name) override { store()->remove(name); }
  std::vector<StoredEntry> list() override { return store()->list(); }
  std::string describe() const override { return url_; }
  bool slow() const override { return true; }

 private:
  std::shared_ptr<Store> store() {
    {
      const std::lock_guard lock(mutex_);
      if (store_) return store_;
    }
    // Made without the lock, since the factory may wait for an interpreter's. Two threads may
    // both make one; the first one stays.
    RemoteStoreFactory make;
    {
      Factory& factory = Factory::get();
      const std::lock_guard lock(factory.mutex);
      make = factory.make;
    }
    if (!make) {
      throw StoreError(StoreProblem::kUnreachable,
                       url_ + ": this program has no access to remote filesystems; use a path");
    }
    std::shared_ptr<Store> opened = call(url_, [&] { return make(url_); });
    const std::lock_guard lock(mutex_);
    if (!store_) store_ = std::move(opened);
    return store_;
  }

  const std::string url_;
  ForkSafeMutex mutex_;
  std::shared_ptr<Store> store_;  // guarded by the mutex
};

}  // namespace

RemoteStore::RemoteStore(std::string url, RemoteHooks hooks)
    : url_(std::move(url)), hooks_(std::move(hooks)) {}

std::optional<Blob> RemoteStore::get(const std::string& name) {
  std::optional<std::string> bytes = call(url_, [&] { return hooks_.get(name); });
  return bytes ? std::optional(Blob(*std::move(bytes))) : std::nullopt;
}

void RemoteStore::put(const std::string& name, std::string_view bytes) {
  call(url_, [&] { hooks_.put(name, bytes); });
}

void RemoteStore::remove(const std::string& name) {
  call(url_, [&] { hooks_.remove(name); });
}

std::vector<StoredEntry> RemoteStore::list() {
  std::vector<StoredEntry> entries = call(url_, [&] { return hooks_.list(); });
  std::erase_if(entries, [](const StoredEntry& entry) { return !is_entry_name(entry.name); });
  return entries;
}

void set_remote_store_factory(RemoteStoreFactory make) {
  Factory& factory = Factory::get();
  const std::lock_guard lock(factory.mutex);
  factory.make.swap(make);
}

std::unique_ptr<Store> make_remote_store(const std::string& url) {
  return std::make_unique<LazyStore>(url);
}

}  // namespace torch_tpu::cache
