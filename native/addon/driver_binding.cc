#include "addon/driver_binding.h"

#include <memory>
#include <string>
#include <utility>

#include "addon/arguments.h"
#include "addon/context.h"
#include "cuda/driver_cuda.h"
#include "cuda/loader.h"
#include "host/driver_host.h"

namespace vkv::addon {
namespace {

Napi::Value OpenHost(const Napi::CallbackInfo& info) {
  Arguments given(info, 0, "openHostDriver");
  HostOptions options;
  options.memory_bytes = static_cast<uint64_t>(given.Integer("memoryBytes", 0, kLargestInteger));
  options.populate = given.Boolean("populate");
  options.huge_pages = given.Boolean("hugePages");
  options.mapping_limit = static_cast<uint64_t>(given.Integer("mappingLimit", 0, kLargestInteger));
  std::unique_ptr<Driver> driver;
  const Status status = given.ok() ? OpenHostDriver(options, driver) : given.status();
  if (ThrowIfFailed(info.Env(), status, "host")) return info.Env().Undefined();
  std::shared_ptr<Driver> shared = std::move(driver);
  auto& known = ContextOf(info.Env()).host_drivers;
  std::erase_if(known, [](const auto& other) { return other.expired(); });
  known.push_back(shared);
  return NativeDriver::Wrap(info.Env(), std::move(shared));
}

Napi::Value OpenCuda(const Napi::CallbackInfo& info) {
  Arguments given(info, "openCudaDriver");
  const auto device = static_cast<int32_t>(given.Integer(0, 0, INT32_MAX));
  const bool has_path = !given.IsUndefined(1);
  const std::string path = has_path ? given.String(1) : std::string();
  std::unique_ptr<Driver> driver;
  std::shared_ptr<cuda::CudaApi> api;
  Status status = given.status();
  if (status.ok()) status = cuda::LoadedCuda::Load(has_path ? path.c_str() : nullptr, api);
  if (status.ok()) status = cuda::DriverCuda::Open(std::move(api), device, "cuda", driver);
  if (ThrowIfFailed(info.Env(), status, "cuda")) return info.Env().Undefined();
  return NativeDriver::Wrap(info.Env(), std::move(driver));
}

// For the Driver constructor of lib/device/driver.ts, which users can call with any object.
Napi::Value IsDriver(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), UnwrapTagged<NativeDriver>(info[0]) != nullptr);
}

}  // namespace

void NativeDriver::Define(Napi::Env env, Napi::Object exports) {
  const Napi::Function driver_class =
      DefineClass(env, "NativeDriver",
                  {InstanceMethod<&NativeDriver::Info>("info"),
                   InstanceMethod<&NativeDriver::QueryMemory>("queryMemory"),
                   InstanceMethod<&NativeDriver::IsLost>("isLost"),
                   InstanceMethod<&NativeDriver::Close>("close"),
                   InstanceMethod<&NativeDriver::Reserve>("reserve"),
                   InstanceMethod<&NativeDriver::FreeReservation>("freeReservation"),
                   InstanceMethod<&NativeDriver::CreatePage>("createPage"),
                   InstanceMethod<&NativeDriver::ReleasePage>("releasePage"),
                   InstanceMethod<&NativeDriver::Map>("map"),
                   InstanceMethod<&NativeDriver::SetAccess>("setAccess"),
                   InstanceMethod<&NativeDriver::Unmap>("unmap"),
                   InstanceMethod<&NativeDriver::Write>("write"),
                   InstanceMethod<&NativeDriver::Read>("read"),
                   InstanceMethod<&NativeDriver::RegisterHost>("registerHost"),
                   InstanceMethod<&NativeDriver::UnregisterHost>("unregisterHost"),
                   InstanceMethod<&NativeDriver::Download>("download"),
                   InstanceMethod<&NativeDriver::Upload>("upload"),
                   InstanceMethod<&NativeDriver::Copy>("copy"),
                   InstanceMethod<&NativeDriver::Fill>("fill"),
                   InstanceMethod<&NativeDriver::CreateStream>("createStream"),
                   InstanceMethod<&NativeDriver::DestroyStream>("destroyStream"),
                   InstanceMethod<&NativeDriver::SynchronizeStream>("synchronizeStream"),
                   InstanceMethod<&NativeDriver::SynchronizeAsync>("synchronizeAsync"),
                   InstanceMethod<&NativeDriver::MarkStream>("markStream"),
                   InstanceMethod<&NativeDriver::EndAwait>("endAwait"),
                   InstanceMethod<&NativeDriver::CancelStream>("cancelStream"),
                   InstanceMethod<&NativeDriver::RecordEvent>("recordEvent"),
                   InstanceMethod<&NativeDriver::QueryEvent>("queryEvent"),
                   InstanceMethod<&NativeDriver::SynchronizeEvent>("synchronizeEvent"),
                   InstanceMethod<&NativeDriver::WaitEvent>("waitEvent"),
                   InstanceMethod<&NativeDriver::DestroyEvent>("destroyEvent"),
                   InstanceMethod<&NativeDriver::FailCall>("failCall")});
  ContextOf(env).driver_class = Napi::Persistent(driver_class);
  exports.Set("openHostDriver", Napi::Function::New<OpenHost>(env, "openHostDriver"));
  exports.Set("isDriver", Napi::Function::New<IsDriver>(env, "isDriver"));
  exports.Set("openCudaDriver", Napi::Function::New<OpenCuda>(env, "openCudaDriver"));
}

Napi::Value NativeDriver::Wrap(Napi::Env env, std::shared_ptr<Driver> driver) {
  napi_value external = nullptr;
  napi_value wrapped = nullptr;
  const bool is_made = napi_create_external(env, &driver, nullptr, nullptr, &external) == napi_ok &&
                       napi_new_instance(env, ContextOf(env).driver_class.Value(), 1, &external, &wrapped) == napi_ok;
  return is_made ? Napi::Value(env, wrapped) : env.Undefined();
}

std::shared_ptr<Driver> NativeDriver::Of(const Napi::Value& value) {
  NativeDriver* const driver = UnwrapTagged<NativeDriver>(value);
  return driver != nullptr ? driver->driver_ : nullptr;
}

NativeDriver::NativeDriver(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeDriver>(info) {
  void* driver = nullptr;
  if (info.Length() != 1 || !info[0].IsExternal()) return;
  if (napi_get_value_external(info.Env(), info[0], &driver) != napi_ok || driver == nullptr) return;
  driver_ = *static_cast<std::shared_ptr<Driver>*>(driver);
  (void)napi_type_tag_object(info.Env(), info.This(), &kTag);
}

Napi::Value NativeDriver::Info(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!driver_) return Run(env, [](Driver&) { return Ok(); });
  const DriverInfo& from = driver_->info();
  Napi::Object to = Napi::Object::New(env);
  to.Set("kind", from.kind);
  to.Set("kernels", from.kernels);
  to.Set("deviceName", from.device_name);
  to.Set("device", from.device);
  to.Set("driverVersion", from.driver_version);
  to.Set("computeCapability", from.compute_capability);
  to.Set("granularityBytes", FromCount(env, from.granularity_bytes));
  to.Set("defaultPageBytes", FromCount(env, from.default_page_bytes));
  to.Set("mappingLimit", FromCount(env, from.mapping_limit));
  to.Set("hasStreams", from.has_streams);
  to.Set("hasHostAccess", from.has_host_access);
  to.Set("hasZeroedPages", from.has_zeroed_pages);
  to.Set("hasReadableHoles", from.has_readable_holes);
  to.Set("hasMemory", from.has_memory);
  return to;
}

Napi::Value NativeDriver::QueryMemory(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  MemoryInfo from;
  bool is_known = false;
  Run(env, [&](Driver& driver) {
    const Status status = driver.QueryMemory(from);
    is_known = status.ok();
    return status;
  });
  if (!is_known) return env.Undefined();
  Napi::Object to = Napi::Object::New(env);
  to.Set("totalBytes", FromCount(env, from.total_bytes));
  to.Set("freeBytes", FromCount(env, from.free_bytes));
  to.Set("residentBytes", FromCount(env, from.resident_bytes));
  to.Set("livePages", FromCount(env, from.live_pages));
  to.Set("liveReservations", FromCount(env, from.live_reservations));
  to.Set("mappings", FromCount(env, from.mappings));
  to.Set("processMappings", FromCount(env, from.process_mappings));
  return to;
}

Napi::Value NativeDriver::IsLost(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), driver_ && driver_->is_lost());
}

Napi::Value NativeDriver::Close(const Napi::CallbackInfo& info) {
  driver_.reset();
  return info.Env().Undefined();
}

Napi::Value NativeDriver::Reserve(const Napi::CallbackInfo& info) {
  uint64_t address = 0;
  Run(info.Env(), [&](Driver& driver) { return driver.Reserve(ToUint64(info[0]), ToUint64(info[1]), address); });
  return FromUint64(info.Env(), address);
}

Napi::Value NativeDriver::FreeReservation(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.FreeReservation(ToUint64(info[0]), ToUint64(info[1])); });
}

Napi::Value NativeDriver::CreatePage(const Napi::CallbackInfo& info) {
  PageHandle page = 0;
  Run(info.Env(), [&](Driver& driver) { return driver.CreatePage(ToUint64(info[0]), ToUint64(info[1]), page); });
  return FromUint64(info.Env(), page);
}

Napi::Value NativeDriver::ReleasePage(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.ReleasePage(ToUint64(info[0]), ToUint64(info[1])); });
}

Napi::Value NativeDriver::Map(const Napi::CallbackInfo& info) {
  return Run(info.Env(),
             [&](Driver& driver) { return driver.Map(ToUint64(info[0]), ToUint64(info[1]), ToUint64(info[2])); });
}

Napi::Value NativeDriver::SetAccess(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.SetAccess(ToUint64(info[0]), ToUint64(info[1])); });
}

Napi::Value NativeDriver::Unmap(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.Unmap(ToUint64(info[0]), ToUint64(info[1])); });
}

Napi::Value NativeDriver::Write(const Napi::CallbackInfo& info) {
  Arguments given(info, "write");
  const std::span<uint8_t> bytes = given.Uint8s(1);
  return Run(info.Env(), [&](Driver& driver) {
    return given.ok() ? driver.Write(ToUint64(info[0]), bytes.data(), bytes.size()) : given.status();
  });
}

Napi::Value NativeDriver::Read(const Napi::CallbackInfo& info) {
  Arguments given(info, "read");
  const std::span<uint8_t> bytes = given.Uint8s(0);
  return Run(info.Env(), [&](Driver& driver) {
    return given.ok() ? driver.Read(bytes.data(), ToUint64(info[1]), bytes.size()) : given.status();
  });
}

Napi::Value NativeDriver::RegisterHost(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.RegisterHost(ToUint64(info[0]), ToUint64(info[1])); });
}

Napi::Value NativeDriver::UnregisterHost(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.UnregisterHost(ToUint64(info[0])); });
}

Napi::Value NativeDriver::Download(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) {
    void* const to = reinterpret_cast<void*>(ToUint64(info[0]));
    return driver.Download(to, ToUint64(info[1]), ToUint64(info[2]), ToUint64(info[3]));
  });
}

Napi::Value NativeDriver::Upload(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) {
    const void* const from = reinterpret_cast<const void*>(ToUint64(info[1]));
    return driver.Upload(ToUint64(info[0]), from, ToUint64(info[2]), ToUint64(info[3]));
  });
}

Napi::Value NativeDriver::Copy(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) {
    return driver.Copy(ToUint64(info[0]), ToUint64(info[1]), ToUint64(info[2]), ToUint64(info[3]));
  });
}

Napi::Value NativeDriver::Fill(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) {
    const auto value = static_cast<uint8_t>(ToInt32(info[1]));
    return driver.Fill(ToUint64(info[0]), value, ToUint64(info[2]), ToUint64(info[3]));
  });
}

// Host only (the mock is scripted through its device): the nth next system call of a kind fails with an errno.
Napi::Value NativeDriver::FailCall(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) {
    DriverHost* const host = driver.AsHost();
    if (host == nullptr) return Fail(Code::kDriverMisuse, "failCall");
    Arguments given(info, "failCall");
    const std::string kind = given.String(0);
    if (!given.ok()) return given.status();
    return host->FailCall(kind, ToInt32(info[1]), ToInt32(info[2]));
  });
}

}  // namespace vkv::addon
