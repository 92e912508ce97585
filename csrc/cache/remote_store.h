// A store behind functions that somebody else provides: the bindings, with Python's fsspec.
#pragma once

#include <functional>
#include <memory>

#include "cache/store.h"

namespace torch_tpu::cache {

// Called from background threads, several at once, with no lock held. What they throw means that
// the remote is unreachable, unless it is a StoreError.
struct RemoteHooks {
  std::function<std::optional<std::string>(const std::string& name)> get;
  std::function<void(const std::string& name, std::string_view bytes)> put;
  std::function<void(const std::string& name)> remove;
  std::function<std::vector<StoredEntry>()> list;
};

class RemoteStore : public Store {
 public:
  RemoteStore(std::string url, RemoteHooks hooks);

  std::optional<Blob> get(const std::string& name) override;
  void put(const std::string& name, std::string_view bytes) override;
  void remove(const std::string& name) override;
  std::vector<StoredEntry> list() override;
  std::string describe() const override { return url_; }
  bool slow() const override { return true; }

 private:
  const std::string url_;
  const RemoteHooks hooks_;
};

using RemoteStoreFactory = std::function<std::unique_ptr<Store>(const std::string& url)>;

// Set once, before the first use of a remote tier.
void set_remote_store_factory(RemoteStoreFactory factory);

// The store of a URL, made by the factory at the first operation, in the thread that needs it (a
// background thread). Until then nothing is connected or imported.
std::unique_ptr<Store> make_remote_store(const std::string& url);

}  // namespace torch_tpu::cache
