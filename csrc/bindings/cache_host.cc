#include "bindings/cache_host.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/fork_safe_mutex.h"
#include "cache/host_hooks.h"
#include "cache/remote_store.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

using cache::StoreError;
using cache::StoreProblem;
using std::chrono::seconds;

// How long a remote has for one entry, and for the list of all.
constexpr seconds kEntryLimit{60}, kListLimit{300};

// Whether threads that Python did not start may enter it.
class Interpreter {
 public:
  static Interpreter& get() {
    static Interpreter& i = *std::make_unique<Interpreter>().release();
    return i;
  }

  // Runs `f`, which must not wait for anything, with the GIL; false: Python is ending.
  template <class F>
  bool enter(const F& f) {
    const std::shared_ptr<void> counted(nullptr, [this](void*) { inside_.fetch_sub(1); });
    inside_.fetch_add(1);  // before looking: leave() looks the other way round
    if (left()) return false;
    const py::gil_scoped_acquire gil;
    f();
    return true;
  }

  // Waits, without the GIL, until nobody is inside. Not forever: in a forked child nobody leaves.
  void leave() {
    left_.store(true);
    for (int i = 0; i < 500 && inside_.load() != 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  bool left() const { return left_.load(); }

 private:
  std::atomic<int> inside_{0};
  std::atomic<bool> left_{false};
};

// --- Log lines, which come from any thread, with the GIL or without.

class Log {
 public:
  static Log& get() {
    static Log& log = *std::make_unique<Log>().release();
    return log;
  }

  void add(const std::string& line) {
    if (Interpreter::get().left()) {
      std::fputs(("torch_tpu: " + line + "\n").c_str(), stderr);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    }
    // Needs no GIL. When it is refused (too many are pending) the next line or the end tries again.
    Py_AddPendingCall(
        [](void*) {
          Log::get().write();
          return 0;
        },
        nullptr);
  }

  // With the GIL.
  void write() {
    std::vector<std::string> lines;
    {
      const std::lock_guard lock(mutex_);
      lines.swap(lines_);
    }
    if (lines.empty()) return;
    try {
      const py::object logger = py::module_::import("logging").attr("getLogger")("torch_tpu.cache");
      for (const std::string& line : lines) logger.attr("warning")("%s", line);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("the log of the compilation cache");
    }
  }

 private:
  cache::ForkSafeMutex mutex_;
  std::vector<std::string> lines_;  // guarded by the mutex
};

void wait_without_gil(const std::function<void()>& wait) {
  if (PyGILState_Check()) {
    const py::gil_scoped_release release;
    wait();
  } else {
    wait();
  }
}

// --- Remote stores.

// What Python answers to one operation.
struct Reply {
  std::mutex mutex;
  std::condition_variable arrived;
  bool done = false;
  std::string problem;  // empty: it worked
  std::string message;
  std::optional<std::string> content;       // of get
  std::vector<cache::StoredEntry> entries;  // of list
};

void read_result(Reply& reply, const py::object& result) {
  if (PyBytes_Check(result.ptr())) {
    reply.content = result.cast<std::string>();
  } else if (!result.is_none()) {
    for (const py::handle item : result) {
      auto [name, size, time] = item.cast<std::tuple<std::string, uint64_t, double>>();
      reply.entries.push_back({std::move(name), size, static_cast<int64_t>(time)});
    }
  }
}

// Called by Python, in a thread of its own.
void answer(Reply& reply, std::string problem, std::string message, const py::object& result) {
  const std::lock_guard lock(reply.mutex);  // never held by one who waits for the GIL
  reply.problem = std::move(problem);
  reply.message = std::move(message);
  try {
    read_result(reply, result);
  } catch (const std::exception& error) {
    reply.problem = "broken";
    reply.message = error.what();
  }
  reply.done = true;
  reply.arrived.notify_all();
}

StoreProblem problem_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(StoreProblem::kCount); ++i) {
    const auto problem = static_cast<StoreProblem>(i);
    if (name == cache::to_string(problem)) return problem;
  }
  return StoreProblem::kBroken;
}

// One remote store in Python; the object lives as long as the process.
class RemoteObject {
 public:
  RemoteObject(std::string url, PyObject* object) : url_(std::move(url)), object_(object) {}

  // `make_arguments` is called with the GIL.
  template <class F>
  std::shared_ptr<Reply> call(const char* operation, seconds limit, const F& make_arguments) const {
    const auto reply = std::make_shared<Reply>();
    const bool asked = Interpreter::get().enter([&] {
      try {
        py::handle(object_).attr("start")(
            operation, make_arguments(),
            py::cpp_function(
                [reply](std::string problem, std::string message, const py::object& result) {
                  answer(*reply, std::move(problem), std::move(message), result);
                }));
      } catch (const py::error_already_set& error) {
        // Its text needs the GIL: the exception must not leave here.
        answer(*reply, "broken", error.what(), py::none());
      }
    });
    if (!asked) fail(StoreProblem::kUnreachable, operation, "the process is ending");
    std::unique_lock lock(reply->mutex);
    if (!reply->arrived.wait_for(lock, limit, [&] { return reply->done; })) {
      fail(StoreProblem::kUnreachable, operation,
           "no answer within " + std::to_string(limit.count()) + " s");
    }
    if (!reply->problem.empty()) fail(problem_named(reply->problem), operation, reply->message);
    return reply;
  }

 private:
  [[noreturn]] void fail(StoreProblem problem, const char* operation,
                         const std::string& why) const {
    throw StoreError(problem, url_ + ": " + operation + ": " + why);
  }

  const std::string url_;
  PyObject* const object_;
};

std::unique_ptr<cache::Store> open_remote(const py::function& open, const std::string& url) {
  PyObject* object = nullptr;
  std::string failure = "the process is ending";
  Interpreter::get().enter([&] {
    try {
      object = open(url).release().ptr();
    } catch (const py::error_already_set& error) {
      failure = error.what();
    }
  });
  if (!object) throw StoreError(StoreProblem::kBroken, url + ": " + failure);
  const auto remote = std::make_shared<const RemoteObject>(url, object);
  cache::RemoteHooks hooks;
  hooks.get = [remote](const std::string& name) {
    return remote->call("get", kEntryLimit, [&] { return py::make_tuple(name); })->content;
  };
  hooks.put = [remote](const std::string& name, std::string_view bytes) {
    remote->call("put", kEntryLimit,
                 [&] { return py::make_tuple(name, py::bytes(bytes.data(), bytes.size())); });
  };
  hooks.remove = [remote](const std::string& name) {
    remote->call("remove", kEntryLimit, [&] { return py::make_tuple(name); });
  };
  hooks.list = [remote] {
    return remote->call("list", kListLimit, [] { return py::tuple(); })->entries;
  };
  return std::make_unique<cache::RemoteStore>(url, std::move(hooks));
}

}  // namespace

void host_cache() {
  cache::set_host_hooks({[](const std::string& line) { Log::get().add(line); }, &wait_without_gil});
}

void set_remote_stores(py::function open) {
  // Never destroyed: the interpreter would be gone.
  const std::shared_ptr<py::function> keep(
      std::make_unique<py::function>(std::move(open)).release(), [](py::function*) {});
  cache::set_remote_store_factory(
      [keep](const std::string& url) { return open_remote(*keep, url); });
}

void leave_python() {
  {
    const py::gil_scoped_release release;
    Interpreter::get().leave();
  }
  Log::get().write();
}

}  // namespace torch_tpu::bindings
