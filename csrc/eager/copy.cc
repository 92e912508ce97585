#include "eager/copy.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/neg.h>

#include "eager/debug_mode.h"
#include "eager/device_context.h"
#include "eager/device_storage.h"
#include "eager/dispatch.h"
#include "eager/dry_run.h"
#include "eager/fusion_graph.h"
#include "eager/pinned_memory.h"
#include "eager/program.h"
#include "eager/scalar_types.h"
#include "eager/trace.h"
#include "runtime/runtime.h"

namespace torch_tpu::eager {

namespace {

// A trace takes host tensors up to this size in as constants.
constexpr int64_t kMaxTracedConstant = 1 << 16;

const c10::OperatorHandle& copy_operator() {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  return op;
}

// Throws what the CPU throws when src does not fit into self.
void check_broadcast(const at::Tensor& self, const at::Tensor& src) {
  if (self.sizes() == src.sizes()) return;
  const std::vector<int64_t> shape = at::infer_size(self.sizes(), src.sizes());
  TORCH_CHECK(self.sizes() == c10::IntArrayRef(shape), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", c10::IntArrayRef(shape));
}

}  // namespace

void copy_on_device(at::Tensor& self, const at::Tensor& src) {
  static const OperatorInfo& info = operator_info(copy_operator());
  torch::jit::Stack stack;
  stack.emplace_back(self);
  stack.emplace_back(src);
  stack.emplace_back(false);
  dispatch(info, copy_operator(), stack);
}

namespace {

// The two have the same elements in the same memory order: the value can be shared.
bool can_share(const at::Tensor& self, const at::Tensor& src) {
  return self.scalar_type() == src.scalar_type() && self.sizes() == src.sizes() &&
         self.strides() == src.strides() && whole_order(self).has_value() &&
         whole_order(src).has_value();
}

bool is_lazy(const at::Tensor& t) { return t.is_conj() || t.is_neg(); }

// The tensor without its conjugate and negative bits: what its storage holds.
at::Tensor stored(at::Tensor t) {
  if (t.is_conj()) t = at::_conj(t);
  if (t.is_neg()) t = at::_neg_view(t);
  return t;
}

// What has to be stored under `like`'s bits so that it reads as `t`.
at::Tensor as_stored_in(const at::Tensor& t, const at::Tensor& like) {
  at::Tensor out = stored(t);
  if (t.is_conj() != like.is_conj()) out = at::conj_physical(out);
  if (t.is_neg() != like.is_neg()) out = at::neg(out);
  return out;
}

void device_to_device(at::Tensor& self, const at::Tensor& src) {
  if (is_lazy(self) || is_lazy(src)) {
    const at::Tensor source = src.is_conj() && !self.is_complex() ? at::_conj(src) : src;
    at::Tensor plain = stored(self);
    device_to_device(plain, as_stored_in(source, self));
    return;
  }
  if (self.device() == src.device()) {
    if (!Trace::current() && can_share(self, src)) {
      if (runtime::DeviceBufferPtr buffer = device_storage(src).buffer()) {
        before_write(device_storage(self));
        device_storage(self).set(std::move(buffer));
      }
      return;
    }
    copy_on_device(self, src);
    return;
  }
  require_real_values("a copy between devices");
  const at::Tensor whole = whole_order(src) ? src : src.clone(c10::MemoryFormat::Contiguous);
  const int device = self.device().index();
  runtime::DeviceBufferPtr moved;
  if (const runtime::DeviceBufferPtr buffer = device_storage(whole).buffer()) {
    if (DryRun::current()) {
      moved = DryRun::unknown(buffer->layout(), device);
    } else {
      check_memory(device, buffer->layout()->nbytes, "a copy");
      moved = std::make_shared<const runtime::DeviceBuffer>(
          buffer->pjrt().copy_to_device(runtime::Runtime::get().device(device)), buffer->layout(),
          device);
      runtime::record_work(device, current_stream(device), moved);
    }
  }
  at::Tensor there = make_tensor(std::move(moved), whole.scalar_type(), whole.sizes(),
                                 whole.strides(), 0, whole.storage().nbytes(), device);
  device_to_device(self, there);
}

// Puts a dense, row-major CPU tensor on the device, in order with the current stream.
runtime::DeviceBufferPtr upload(const at::Tensor& host, int device, bool keep) {
  const runtime::Layout* layout =
      runtime::intern_layout({to_element_type(host.scalar_type()), host.sizes().vec()});
  if (DryRun::current()) return DryRun::from_host(host.const_data_ptr(), layout, device);
  check_memory(device, layout->nbytes, "a copy from the host");
  runtime::DeviceBufferPtr buffer = runtime::Runtime::get().to_device(
      host.const_data_ptr(), layout, device,
      keep ? std::make_shared<at::Tensor>(host) : std::shared_ptr<void>());
  runtime::record_work(device, current_stream(device), buffer);
  return buffer;
}

void host_to_device(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  const int device = self.device().index();
  if (is_lazy(self)) {
    at::Tensor plain = stored(self);
    host_to_device(plain, as_stored_in(src, self), non_blocking);
    return;
  }
  at::Tensor host = src.resolve_conj().resolve_neg();
  if (host.scalar_type() != self.scalar_type()) host = host.to(self.scalar_type());
  if (host.sizes() != self.sizes()) host = host.expand(self.sizes());
  const std::optional<stablehlo::Dims> order = whole_order(self);
  if (order) host = host.permute(*order);
  host = host.contiguous();
  if (Trace* trace = Trace::current()) {
    if (host.numel() > kMaxTracedConstant) {
      throw TraceAborted("a large host tensor is used while an operator is being traced");
    }
    const stablehlo::Value value =
        stablehlo::constant_bytes(trace->builder(), host.const_data_ptr(),
                                  {to_element_type(host.scalar_type()), host.sizes().vec()});
    const c10::IValue written(self);
    trace->before_call({&written, 1});
    DeviceStorage& storage = device_storage(self);
    trace->write(storage, order ? value : write_tensor(self, value, [&] {
                   return storage.contents().filled() ? trace->base(storage)
                                                      : unfilled_base(trace->builder(), self);
                 }));
    return;
  }
  // Nobody else can change a temporary; pinned memory is the caller's to leave alone until the
  // copy is done, when asked for non-blocking.
  const bool temporary =
      host.unsafeGetTensorImpl() != src.unsafeGetTensorImpl() &&
      host.storage().unsafeGetStorageImpl() != src.storage().unsafeGetStorageImpl();
  const bool keep = temporary || (non_blocking && is_pinned(host.const_data_ptr()));
  runtime::DeviceBufferPtr buffer = upload(host, device, keep);
  if (order) {
    before_write(device_storage(self));
    device_storage(self).set(std::move(buffer));
    return;
  }
  const auto strides = row_major_strides(self.sizes());
  const at::Tensor there = make_tensor(std::move(buffer), self.scalar_type(), self.sizes(), strides,
                                       0, host.nbytes(), device);
  copy_on_device(self, there);
}

// The same values in a tensor whose storage holds just them, in the tensor's own dtype.
at::Tensor downloadable(const at::Tensor& self) {
  require_real_values("a copy to the host");
  at::Tensor src = self;
  if (is_lazy(src)) src = src.resolve_conj().resolve_neg();
  if (!lowering::dense_order(src.sizes(), src.strides()) || !whole_order(src)) {
    src = src.clone(c10::MemoryFormat::Contiguous);
  }
  const Contents contents = device_storage(src).contents();
  if (contents.buffer && contents.layout->type.dtype != to_element_type(src.scalar_type())) {
    src = src.clone(c10::MemoryFormat::Contiguous);
  }
  return src;
}

// Whether `host` can take the bytes of `src` as they are.
bool same_bytes(const at::Tensor& host, const at::Tensor& src) {
  return host.scalar_type() == src.scalar_type() && host.sizes() == src.sizes() &&
         host.strides() == src.strides() && !host.is_conj() && !host.is_neg();
}

// Waits for the value and copies it. A dry run knows few values: the others read as zeros.
void read_to_host(const runtime::DeviceBufferPtr& buffer, void* dst) {
  if (buffer->is_hollow() && DryRun::current()) {
    DryRun::read(buffer, dst);
  } else {
    // Even where the value is there: what is recorded would keep its inputs' memory while Python
    // looks at a loss, and go into one graph with the next step.
    flush_own_graph(buffer->device(), CutReason::kRead);
    runtime::Runtime::get().to_host(*buffer, dst);
  }
}

// Starts a copy to pinned memory, which is written until the stream has been synchronized. False
// if the copy is not a plain one.
bool start_download(const at::Tensor& self, const at::Tensor& host) {
  const at::Tensor src = downloadable(self);
  const runtime::DeviceBufferPtr buffer = device_storage(src).buffer();
  if (!buffer || !same_bytes(host, src) || DryRun::current()) return false;
  auto done = std::make_shared<const pjrt::Event>(
      buffer->pjrt().to_host(host.mutable_data_ptr(), buffer->layout()->nbytes));
  // Both ends are held until then, whatever becomes of the tensors.
  done->on_ready([buffer, memory = host.storage()](const std::string*) {});
  const int device = self.device().index();
  runtime::record_work(device, current_stream(device), std::move(done));
  return true;
}

// Views of arrays up to this size are cut out on the host: x[i].item() in a loop then needs no
// program per i.
constexpr size_t kMaxWholeDownload = size_t{1} << 16;

// The tensor as a view of its whole base, brought to the host; undefined if that does not pay.
at::Tensor download_base(const at::Tensor& src, const runtime::DeviceBufferPtr& buffer) {
  const size_t nbytes = buffer->layout()->nbytes, item = src.itemsize();
  const size_t reach = at::detail::computeStorageNbytes(src.sizes(), src.strides(), item,
                                                        static_cast<size_t>(src.storage_offset()));
  if (nbytes > std::max(kMaxWholeDownload, 2 * src.nbytes()) || reach > nbytes) return {};
  const at::Tensor bytes =
      at::detail::empty_cpu({static_cast<int64_t>(nbytes / item * item)}, at::kByte);
  if (nbytes != bytes.nbytes()) return {};
  read_to_host(buffer, bytes.mutable_data_ptr());
  return bytes.view(src.scalar_type()).as_strided(src.sizes(), src.strides(), src.storage_offset());
}

// The tensor on the CPU; `into` is used when it can be filled directly.
at::Tensor download(const at::Tensor& self, const at::Tensor* into) {
  require_real_values("a copy to the host");
  at::Tensor src = self;
  if (is_lazy(src)) src = src.resolve_conj().resolve_neg();
  Contents contents = device_storage(src).contents();
  const stablehlo::ElementType type = to_element_type(src.scalar_type());
  if (!whole_order(src) || (contents.buffer && contents.layout->type.dtype != type)) {
    if (contents.buffer) {
      if (at::Tensor host = download_base(src, contents.buffer); host.defined()) return host;
    }
    src = src.clone(c10::MemoryFormat::Contiguous);
    contents = device_storage(src).contents();
    // A copy shares the memory where it can: then the elements keep the dtype they were stored by.
    if (contents.buffer && contents.layout->type.dtype != type) {
      return download_base(src, contents.buffer);
    }
  }
  at::Tensor host;
  if (into && !is_lazy(*into) && into->scalar_type() == src.scalar_type() &&
      into->sizes() == src.sizes() && into->strides() == src.strides()) {
    host = *into;
  } else {
    host = at::detail::empty_strided_cpu(src.sizes(), src.strides(), src.scalar_type());
  }
  if (contents.buffer) {
    read_to_host(contents.buffer, host.mutable_data_ptr());
  } else if (host.nbytes() > 0) {
    std::memset(host.mutable_data_ptr(), 0, host.nbytes());  // an unfilled tensor
  }
  return host;
}

}  // namespace

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  return with_torch_errors("aten::copy_", [&]() -> at::Tensor& {
    if (self.is_same(src)) return self;
    TORCH_CHECK(!self.is_sparse() && !src.is_sparse(),
                "copy_: the tpu device has no sparse tensors");
    if (is_tpu(self) && is_tpu(src)) {
      if (self.numel() == 0) {
        check_broadcast(self, src);
        return self;
      }
      if (self.device() == src.device() && self.sizes() == src.sizes()) {
        device_to_device(self, src);
      } else {
        check_broadcast(self, src);
        at::assert_no_partial_overlap(self, src);
        device_to_device(self, src.expand_as(self));
      }
    } else if (is_tpu(self)) {
      TORCH_CHECK(src.device().is_cpu(), "copy_: cannot copy from ", src.device(), " to tpu");
      check_broadcast(self, src);
      if (self.numel() == 0) return self;
      at::Tensor target = self;
      host_to_device(target, src, non_blocking);
      wait_if_debugging(self);
    } else {
      TORCH_CHECK(self.device().is_cpu(), "copy_: cannot copy from tpu to ", self.device());
      check_broadcast(self, src);
      if (self.numel() == 0) return self;
      if (non_blocking && is_pinned(self.const_data_ptr()) && start_download(src, self)) {
        return self;
      }
      const at::Tensor host = download(src, &self);
      if (!host.is_same(self)) self.copy_(host);
    }
    return self;
  });
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor target = dst;
  copy_(target, self, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  return with_torch_errors("aten::_local_scalar_dense",
                           [&] { return at::_local_scalar_dense(download(self, nullptr)); });
}

at::Tensor to_cpu(const at::Tensor& self) { return download(self, nullptr); }

}  // namespace torch_tpu::eager
