// A simulated accelerator "sim" for tests: two devices whose memory is the host's and whose kernels are the CPU's.
//
// It is torch's PrivateUse1 backend. Every operator runs on aliases of its arguments' memory, so results are those of
// the CPU. What a real accelerator would refuse is refused: operands on different devices. What would make it wait for
// the host is recorded by name, and refused while `strict` is on: values read on the host, copies between host and
// device, and operators whose result's shape depends on values.

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

using at::Tensor;
constexpr auto SIM = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;

thread_local c10::DeviceIndex current = 0;
std::atomic<int64_t> allocated{0}, limit{0};  // bytes; a limit of 0 is none
std::atomic<bool> strict{false};
std::mutex events_lock;
std::vector<std::string> events;

void waits(const std::string& what) {
  std::lock_guard<std::mutex> held(events_lock);
  events.push_back(what);
  TORCH_CHECK(!strict, "sim: ", what, " inside a step");
}

// --- memory and devices

struct Block {
  void* data;
  int64_t size;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= block->size;
  std::free(block->data);
  delete block;
}

struct SimAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size), most = limit.load();
    TORCH_CHECK_WITH(
        OutOfMemoryError, !most || allocated + bytes <= most, "sim out of memory. Tried to allocate ", bytes, " bytes");
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 64, size ? size : 1) == 0, "no memory");
    allocated += bytes;
    return {data, new Block{data, bytes}, &release, c10::Device(SIM, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

SimAllocator allocator;
REGISTER_ALLOCATOR(SIM, &allocator)

struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return SIM; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {SIM, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < DEVICES, "sim: there is no device ", device.index());
    if (device.index() >= 0) current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard);

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
};

// --- operators

// A CPU tensor with the same memory.
Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != SIM) return tensor;
  return at::from_blob(
      tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

Tensor on_device(const Tensor& result, c10::Device device) {
  if (!result.defined()) return result;
  auto made = at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
  on_host(made).copy_(result);
  return made;
}

Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(type), format);
}

Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> type, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (from.device() != to.device()) waits("copy from " + from.device().str() + " to " + to.device().str());
  on_host(to).copy_(on_host(from));
  return to;
}

at::Scalar local_scalar_dense(const Tensor& tensor) {
  waits("item()");
  return at::_local_scalar_dense(on_host(tensor));
}

Tensor as_strided(
    const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  resize_(to, from.sym_sizes(), std::nullopt);
  return copy_from(from, to, false);
}

Tensor& set_storage(
    Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(
      self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

void same_device(const std::string& what, c10::Device device, const Tensor& tensor) {
  const bool number = tensor.device().is_cpu() && tensor.dim() == 0;  // torch takes it as a number
  TORCH_CHECK(
      number || tensor.device() == device, "sim: ", what, ": expected all tensors on ", device, ", got one on ",
      tensor.device());
}

Tensor convolution(
    const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  same_device("convolution", x.device(), weight);
  std::optional<Tensor> offsets;
  if (bias && bias->defined()) {
    same_device("convolution", x.device(), *bias);
    offsets = on_host(*bias);
  }
  return on_device(
      at::convolution(
          on_host(x), on_host(weight), offsets, stride, padding, dilation, transposed, output_padding, groups),
      x.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  same_device("convolution_backward", x.device(), gradient);
  same_device("convolution_backward", x.device(), weight);
  const auto [dx, dw, db] = at::convolution_backward(
      on_host(gradient), on_host(x), on_host(weight), at::IntArrayRef(weight.size(transposed ? 1 : 0) * groups), stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  return {on_device(dx, x.device()), on_device(dw, x.device()), on_device(db, x.device())};
}

// Operators for which CUDA waits, besides indexing with booleans.
const std::set<std::string> WAITING = {
    "aten::nonzero",   "aten::nonzero_static", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
    "aten::bincount",  "aten::equal",          "aten::is_nonzero",    "aten::histc",    "aten::repeat_interleave",
    "aten::linalg_svd"};

bool has_mask(const c10::IValue& value) {
  for (const auto& index : value.toListRef())
    if (index.isTensor() && index.toTensor().defined() &&
        (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte))
      return true;
  return false;
}

void any_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const auto arguments = schema.arguments().size();
  const auto begin = stack->size() - arguments;
  std::optional<c10::Device> device;
  const auto look = [&](const Tensor& tensor) {
    if (tensor.defined() && tensor.device().type() == SIM && !device) device = tensor.device();
  };
  for (size_t i = begin; i < stack->size(); ++i) {
    const auto& value = (*stack)[i];
    if (value.isTensor()) look(value.toTensor());
    if (value.isTensorList() || value.isOptionalTensorList())
      for (const auto& entry : value.toListRef())
        if (entry.isTensor()) look(entry.toTensor());
    if (value.isDevice() && value.toDevice().type() == SIM && !device) device = value.toDevice();
  }
  TORCH_CHECK(device, "sim: ", name, " without a tensor on the device");
  const bool indexes = name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
  if (WAITING.count(name) || (indexes && has_mask((*stack)[begin + 1]))) waits(name);

  std::vector<Tensor> given(arguments);  // what to return for a result that is an argument
  std::set<size_t> resized;
  std::set<const void*> memory;
  const auto convert = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    same_device(name, *device, tensor);
    if (tensor.device().type() == SIM && tensor.numel()) memory.insert(tensor.storage().data());
    return on_host(tensor);
  };
  for (size_t i = 0; i < arguments; ++i) {
    auto& value = (*stack)[begin + i];
    const auto* alias = schema.arguments()[i].alias_info();
    if (value.isTensor()) {
      given[i] = value.toTensor();
      if (alias && alias->isWrite() && given[i].defined() && given[i].numel() == 0) {  // an out= that is to be resized
        resized.insert(i);
        value = at::empty({0}, given[i].options().device(at::kCPU));
      } else {
        value = convert(given[i]);
      }
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& entry : value.toTensorVector()) list.push_back(convert(entry));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& entry : value.toListRef())
        list.push_back(entry.isTensor() ? std::optional<Tensor>(convert(entry.toTensor())) : std::nullopt);
      value = list;
    } else if (value.isDevice() && value.toDevice().type() == SIM) {
      value = c10::Device(at::kCPU);
    }
  }
  std::vector<Tensor> outs(arguments);
  for (const auto i : resized) outs[i] = (*stack)[begin + i].toTensor();

  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);

  for (const auto i : resized)
    if (outs[i].numel()) {
      const c10::DeviceGuard guard(given[i].device());
      at::native::resize_(given[i], outs[i].sizes(), std::nullopt);
      on_host(given[i]).copy_(outs[i]);
    }
  const auto adopt = [&](const Tensor& result) {
    TORCH_CHECK(
        !result.defined() || !result.numel() || !memory.count(result.storage().data()), "sim: ", name,
        " returns a view and needs a kernel of its own");
    return on_device(result, *device);
  };
  const auto& returns = schema.returns();
  const auto first = stack->size() - returns.size();
  for (size_t r = 0; r < returns.size(); ++r) {
    auto& value = (*stack)[first + r];
    const auto* alias = returns[r].alias_info();
    if (value.isTensor() && alias && alias->isWrite()) {
      for (size_t i = 0; i < arguments; ++i) {
        const auto* other = schema.arguments()[i].alias_info();
        if (other && *other == *alias) value = given[i];
      }
    } else if (value.isTensor()) {
      value = adopt(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& entry : value.toTensorVector()) list.push_back(adopt(entry));
      value = list;
    }
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&any_operator>()); }

// --- what tests ask

TORCH_LIBRARY(sepal_sim, m) {
  m.def("allocated() -> int", []() { return allocated.load(); });
  m.def("limit(int bytes) -> ()", [](int64_t bytes) { limit = bytes; });
  m.def("strict(bool on) -> ()", [](bool on) { strict = on; });
  m.def("events() -> str[]", []() {
    std::lock_guard<std::mutex> held(events_lock);
    auto found = events;
    events.clear();
    return found;
  });
}

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new SimHooks());
  return true;
}();

}  // namespace
