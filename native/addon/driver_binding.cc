#include "addon/driver_binding.h"

#include <string>

#include "addon/context.h"
#include "cuda/open_cuda.h"
#include "host/driver_host.h"

namespace vkv::addon {
namespace {

Napi::Value OpenHost(const Napi::CallbackInfo& info) {
  const Napi::Object given = info[0].As<Napi::Object>();
  HostOptions options;
  options.memory_bytes = ToUint64(given.Get("memoryBytes"));
  options.populate = given.Get("populate").ToBoolean();
  options.huge_pages = given.Get("hugePages").ToBoolean();
  options.mapping_limit = ToUint64(given.Get("mappingLimit"));
  std::unique_ptr<Driver> driver;
  if (ThrowIfFailed(info.Env(), OpenHostDriver(options, driver), "host")) return info.Env().Undefined();
  return NativeDriver::Wrap(info.Env(), std::move(driver));
}

Napi::Value OpenCuda(const Napi::CallbackInfo& info) {
  const bool has_path = info[1].IsString();
  const std::string path = has_path ? info[1].As<Napi::String>().Utf8Value() : std::string();
  std::unique_ptr<Driver> driver;
  const Status status = OpenCudaDriver(ToInt32(info[0]), has_path ? path.c_str() : nullptr, driver);
  if (ThrowIfFailed(info.Env(), status, "cuda")) return info.Env().Undefined();
  return NativeDriver::Wrap(info.Env(), std::move(driver));
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
                   InstanceMethod<&NativeDriver::Copy>("copy"),
                   InstanceMethod<&NativeDriver::Fill>("fill"),
                   InstanceMethod<&NativeDriver::CreateStream>("createStream"),
                   InstanceMethod<&NativeDriver::DestroyStream>("destroyStream"),
                   InstanceMethod<&NativeDriver::SynchronizeStream>("synchronizeStream"),
                   InstanceMethod<&NativeDriver::RecordEvent>("recordEvent"),
                   InstanceMethod<&NativeDriver::QueryEvent>("queryEvent"),
                   InstanceMethod<&NativeDriver::SynchronizeEvent>("synchronizeEvent"),
                   InstanceMethod<&NativeDriver::WaitEvent>("waitEvent"),
                   InstanceMethod<&NativeDriver::DestroyEvent>("destroyEvent"),
                   InstanceMethod<&NativeDriver::FailCall>("failCall")});
  ContextOf(env).driver_class = Napi::Persistent(driver_class);
  exports.Set("openHostDriver", Napi::Function::New<OpenHost>(env, "openHostDriver"));
  exports.Set("openCudaDriver", Napi::Function::New<OpenCuda>(env, "openCudaDriver"));
}

Napi::Value NativeDriver::Wrap(Napi::Env env, std::shared_ptr<Driver> driver) {
  auto external = Napi::External<std::shared_ptr<Driver>>::New(env, &driver);
  return ContextOf(env).driver_class.Value().New({external});
}

std::shared_ptr<Driver> NativeDriver::Of(const Napi::Value& value) {
  NativeDriver* const driver = Napi::ObjectWrap<NativeDriver>::Unwrap(value.As<Napi::Object>());
  return driver != nullptr ? driver->driver_ : nullptr;
}

NativeDriver::NativeDriver(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeDriver>(info) {
  if (info.Length() == 1 && info[0].IsExternal())
    driver_ = *info[0].As<Napi::External<std::shared_ptr<Driver>>>().Data();
}

template <typename Call>
Napi::Value NativeDriver::Run(Napi::Env env, Call call) {
  if (!driver_) {
    ThrowIfFailed(env, Fail(Code::kClosed, "driver"));
    return env.Undefined();
  }
  DriverScope scope(*driver_);
  ThrowIfFailed(env, scope.status().ok() ? call(*driver_) : scope.status(), KindOf(driver_));
  return env.Undefined();
}

Napi::Value NativeDriver::Info(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!driver_) return Run(env, [](Driver&) { return Ok(); });
  const DriverInfo& from = driver_->info();
  Napi::Object to = Napi::Object::New(env);
  to.Set("kind", from.kind);
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
  Run(env, [&](Driver& driver) { return driver.QueryMemory(from); });
  if (env.IsExceptionPending()) return env.Undefined();
  Napi::Object to = Napi::Object::New(env);
  to.Set("totalBytes", FromCount(env, from.total_bytes));
  to.Set("freeBytes", FromCount(env, from.free_bytes));
  to.Set("residentBytes", FromCount(env, from.resident_bytes));
  to.Set("livePages", FromCount(env, from.live_pages));
  to.Set("liveReservations", FromCount(env, from.live_reservations));
  to.Set("mappings", FromCount(env, from.mappings));
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
  const std::span<uint8_t> bytes = ToBytes(info[1]);
  return Run(info.Env(), [&](Driver& driver) { return driver.Write(ToUint64(info[0]), bytes.data(), bytes.size()); });
}

Napi::Value NativeDriver::Read(const Napi::CallbackInfo& info) {
  const std::span<uint8_t> bytes = ToBytes(info[0]);
  return Run(info.Env(), [&](Driver& driver) { return driver.Read(bytes.data(), ToUint64(info[1]), bytes.size()); });
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

Napi::Value NativeDriver::CreateStream(const Napi::CallbackInfo& info) {
  Stream stream = 0;
  Run(info.Env(), [&](Driver& driver) { return driver.CreateStream(stream); });
  return FromUint64(info.Env(), stream);
}

Napi::Value NativeDriver::DestroyStream(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.DestroyStream(ToUint64(info[0])); });
}

Napi::Value NativeDriver::SynchronizeStream(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.SynchronizeStream(ToUint64(info[0])); });
}

Napi::Value NativeDriver::RecordEvent(const Napi::CallbackInfo& info) {
  Event event = 0;
  Run(info.Env(), [&](Driver& driver) { return driver.RecordEvent(ToUint64(info[0]), event); });
  return FromUint64(info.Env(), event);
}

Napi::Value NativeDriver::QueryEvent(const Napi::CallbackInfo& info) {
  bool is_done = false;
  Run(info.Env(), [&](Driver& driver) { return driver.QueryEvent(ToUint64(info[0]), is_done); });
  return Napi::Boolean::New(info.Env(), is_done);
}

Napi::Value NativeDriver::SynchronizeEvent(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.SynchronizeEvent(ToUint64(info[0])); });
}

Napi::Value NativeDriver::WaitEvent(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.WaitEvent(ToUint64(info[0]), ToUint64(info[1])); });
}

Napi::Value NativeDriver::DestroyEvent(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) { return driver.DestroyEvent(ToUint64(info[0])); });
}

// Host only (the mock is scripted through its device): the nth next system call of a kind fails with an errno.
Napi::Value NativeDriver::FailCall(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) {
    if (driver.info().kind != "host") return Fail(Code::kDriverMisuse, "failCall");
    const std::string kind = info[0].As<Napi::String>().Utf8Value();
    return static_cast<DriverHost&>(driver).FailCall(kind, ToInt32(info[1]), ToInt32(info[2]));
  });
}

}  // namespace vkv::addon
