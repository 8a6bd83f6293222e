// The part of NativeDriver that is about streams and events.
#include "addon/arguments.h"
#include "addon/context.h"
#include "addon/driver_binding.h"
#include "addon/synchronizing.h"
#include "host/driver_host.h"

namespace vkv::addon {
namespace {

// Null: the driver has no streams of the host's, or this one is none.
std::shared_ptr<HostStream> FindHostStream(Driver& driver, Stream stream) {
  DriverHost* const host = driver.AsHost();
  return host != nullptr ? host->FindStream(stream) : nullptr;
}

}  // namespace

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

Napi::Value NativeDriver::SynchronizeAsync(const Napi::CallbackInfo& info) {
  if (!driver_) return Run(info.Env(), [](Driver&) { return Ok(); });
  return Synchronizing::Start(info.Env(), std::make_unique<Synchronizing>(driver_, ToUint64(info[0])));
}

Napi::Value NativeDriver::MarkStream(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) {
    Arguments given(info, "markStream");
    const int64_t id = given.Integer(1, 0, kLargestInteger);
    const bool is_awaited = given.Boolean(2);
    const auto stream = FindHostStream(driver, ToUint64(info[0]));
    if (!stream || !given.ok()) return Fail(Code::kDriverMisuse, "markStream", static_cast<int64_t>(ToUint64(info[0])));
    auto* const marks = &ContextOf(info.Env()).stream_marks;
    if (is_awaited) marks->Await(1);
    stream->Mark([marks, id](const HostStream::Failure& failure) { marks->Notify({id, failure}); });
    return Ok();
  });
}

Napi::Value NativeDriver::EndAwait(const Napi::CallbackInfo& info) {
  ContextOf(info.Env()).stream_marks.Await(-1);
  return info.Env().Undefined();
}

Napi::Value NativeDriver::CancelStream(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](Driver& driver) {
    const auto stream = FindHostStream(driver, ToUint64(info[0]));
    if (!stream) return Fail(Code::kDriverMisuse, "cancelStream", static_cast<int64_t>(ToUint64(info[0])));
    stream->Cancel();
    return Ok();
  });
}

std::shared_ptr<HostStream> HostStreamOf(const std::shared_ptr<Driver>& driver, Arguments& options) {
  const uint64_t stream = options.Address("stream");
  if (!driver || stream == 0) return nullptr;
  auto found = FindHostStream(*driver, stream);
  if (!found) options.Refuse(static_cast<int64_t>(stream));
  return found;
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

}  // namespace vkv::addon
