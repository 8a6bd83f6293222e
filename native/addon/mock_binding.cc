// NativeMockDevice: a simulated CUDA device seen from JavaScript: its script, its streams and its records.
// Converts and forwards; lib/device/mock-device.ts validates, and calls nothing after close().
#include <napi.h>

#include <memory>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "addon/driver_binding.h"
#include "cuda/driver_cuda.h"
#include "kernels/cuda/simulated.h"
#include "mock/mock_device.h"

namespace vkv::addon {

class NativeMockDevice : public Napi::ObjectWrap<NativeMockDevice> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  explicit NativeMockDevice(const Napi::CallbackInfo& info);  // (options), all of them given

 private:
  Napi::Value OpenDriver(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);
  Napi::Value FailCall(const Napi::CallbackInfo& info);
  Napi::Value ClearFailures(const Napi::CallbackInfo& info);
  Napi::Value SetLatencyNs(const Napi::CallbackInfo& info);
  Napi::Value LoseDevice(const Napi::CallbackInfo& info);
  Napi::Value QueueWork(const Napi::CallbackInfo& info);
  Napi::Value CompleteStream(const Napi::CallbackInfo& info);
  Napi::Value CompleteAll(const Napi::CallbackInfo& info);
  Napi::Value PendingWork(const Napi::CallbackInfo& info);
  Napi::Value Journal(const Napi::CallbackInfo& info);
  Napi::Value ClearJournal(const Napi::CallbackInfo& info);
  Napi::Value CallCounts(const Napi::CallbackInfo& info);
  Napi::Value ResetCallCounts(const Napi::CallbackInfo& info);
  Napi::Value Leaks(const Napi::CallbackInfo& info);
  Napi::Value Misuses(const Napi::CallbackInfo& info);
  Napi::Value ClearMisuses(const Napi::CallbackInfo& info);

  // The kind of call that an argument names; one that does not exist is refused above.
  static mock::CallKind ToKind(const Napi::Value& value);

  std::shared_ptr<mock::MockDevice> device_;  // shared with the drivers that are open over it
};

namespace {

constexpr char kKind[] = "mock";
constexpr int kDevice = 0;  // a mock device is the only one of its driver

mock::MockOptions ToOptions(Arguments& from) {
  const auto count = [&](const char* name) { return static_cast<uint64_t>(from.Integer(name, 0, kLargestInteger)); };
  const auto number = [&](const char* name) { return static_cast<int32_t>(from.Integer(name, 0, INT32_MAX)); };
  mock::MockOptions to;
  to.name = from.String("name");
  to.memory_bytes = count("memoryBytes");
  to.address_space_bytes = count("addressSpaceBytes");
  to.granularity_bytes = count("granularityBytes");
  to.backing = from.String("backing") == "none" ? mock::BackingMode::kNone : mock::BackingMode::kReal;
  to.streams = from.String("streams") == "manual" ? mock::StreamMode::kManual : mock::StreamMode::kImmediate;
  to.context_bytes = count("contextBytes");
  to.module_bytes = count("moduleBytes");
  to.has_slow_waits = from.String("waits") == "slow";
  to.unmap_waits = from.String("unmap") == "waits";
  to.has_garbage = from.Boolean("hasGarbage");
  to.has_virtual_memory = from.Boolean("hasVirtualMemory");
  to.driver_version = number("driverVersion");
  to.compute_capability = number("computeCapability");
  to.find_kernel = kernels::cuda::FindSimulated;
  to.journal_entries = count("journalEntries");
  return to;
}

void SetArguments(Napi::Env env, const mock::CallArguments& from, Napi::Object& to) {
  to.Set("address", FromUint64(env, from.address));
  to.Set("from", FromUint64(env, from.from));
  to.Set("bytes", FromCount(env, from.bytes));
  to.Set("handle", FromUint64(env, from.handle));
  to.Set("stream", FromUint64(env, from.stream));
}

void SetLeftovers(Napi::Env env, const cuda::Leftovers& from, Napi::Object& to) {
  to.Set("reservations", FromCount(env, from.reservations));
  to.Set("mappings", FromCount(env, from.mappings));
  to.Set("pages", FromCount(env, from.pages));
  to.Set("streams", FromCount(env, from.streams));
  to.Set("events", FromCount(env, from.events));
  to.Set("registrations", FromCount(env, from.registrations));
}

// The CUDA driver's results by name, for scripts that fail a call.
Napi::Object CudaResults(Napi::Env env) {
  Napi::Object results = Napi::Object::New(env);
#define VKV_SET(name, value) results.Set(#name, value);
  VKV_CUDA_RESULTS(VKV_SET)
#undef VKV_SET
  return results;
}

}  // namespace

void NativeMockDevice::Define(Napi::Env env, Napi::Object exports) {
  const Napi::Function mock_class = DefineClass(
      env, "NativeMockDevice",
      {InstanceMethod<&NativeMockDevice::OpenDriver>("openDriver"), InstanceMethod<&NativeMockDevice::Close>("close"),
       InstanceMethod<&NativeMockDevice::FailCall>("failCall"),
       InstanceMethod<&NativeMockDevice::ClearFailures>("clearFailures"),
       InstanceMethod<&NativeMockDevice::SetLatencyNs>("setLatencyNs"),
       InstanceMethod<&NativeMockDevice::LoseDevice>("loseDevice"),
       InstanceMethod<&NativeMockDevice::QueueWork>("queueWork"),
       InstanceMethod<&NativeMockDevice::CompleteStream>("completeStream"),
       InstanceMethod<&NativeMockDevice::CompleteAll>("completeAll"),
       InstanceMethod<&NativeMockDevice::PendingWork>("pendingWork"),
       InstanceMethod<&NativeMockDevice::Journal>("journal"),
       InstanceMethod<&NativeMockDevice::ClearJournal>("clearJournal"),
       InstanceMethod<&NativeMockDevice::CallCounts>("callCounts"),
       InstanceMethod<&NativeMockDevice::ResetCallCounts>("resetCallCounts"),
       InstanceMethod<&NativeMockDevice::Leaks>("leaks"), InstanceMethod<&NativeMockDevice::Misuses>("misuses"),
       InstanceMethod<&NativeMockDevice::ClearMisuses>("clearMisuses")});
  ContextOf(env).mock_class = Napi::Persistent(mock_class);
  exports.Set("NativeMockDevice", mock_class);
  exports.Set("cudaResults", CudaResults(env));
}

NativeMockDevice::NativeMockDevice(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeMockDevice>(info) {
  Arguments given(info, 0, "NativeMockDevice");
  const mock::MockOptions options = ToOptions(given);
  ThrowIfFailed(info.Env(), given.ok() ? mock::MockDevice::Open(options, device_) : given.status(), kKind);
}

mock::CallKind NativeMockDevice::ToKind(const Napi::Value& value) {
  mock::CallKind kind = mock::CallKind::cuInit;
  char name[64] = {};
  size_t length = 0;
  (void)napi_get_value_string_utf8(value.Env(), value, name, sizeof(name), &length);
  (void)mock::FindCallKind(name, kind);
  return kind;
}

Napi::Value NativeMockDevice::OpenDriver(const Napi::CallbackInfo& info) {
  std::unique_ptr<Driver> driver;
  const Status status = cuda::DriverCuda::Open(device_, kDevice, kKind, driver);
  if (ThrowIfFailed(info.Env(), status, kKind)) return info.Env().Undefined();
  return NativeDriver::Wrap(info.Env(), std::move(driver));
}

Napi::Value NativeMockDevice::Close(const Napi::CallbackInfo& info) {
  device_.reset();
  return info.Env().Undefined();
}

Napi::Value NativeMockDevice::FailCall(const Napi::CallbackInfo& info) {
  device_->FailCall(ToKind(info[0]), ToUint64(info[1]), static_cast<cuda::CUresult>(ToInt32(info[2])),
                    ToUint64(info[3]));
  return info.Env().Undefined();
}

Napi::Value NativeMockDevice::ClearFailures(const Napi::CallbackInfo& info) {
  device_->ClearFailures();
  return info.Env().Undefined();
}

Napi::Value NativeMockDevice::SetLatencyNs(const Napi::CallbackInfo& info) {
  device_->SetLatency(ToKind(info[0]), ToUint64(info[1]));
  return info.Env().Undefined();
}

Napi::Value NativeMockDevice::LoseDevice(const Napi::CallbackInfo& info) {
  device_->Lose(static_cast<cuda::CUresult>(ToInt32(info[0])));
  return info.Env().Undefined();
}

// (stream, [address, bytes, 1 where it writes, …]); false when the stream is not live.
Napi::Value NativeMockDevice::QueueWork(const Napi::CallbackInfo& info) {
  Arguments given(info, "queueWork");
  const uint64_t stream = given.Address(0);
  const std::span<uint64_t> uses = given.Uint64s(1);
  if (ThrowIfFailed(info.Env(), given.status(), kKind)) return info.Env().Undefined();
  std::vector<mock::Touch> touches;
  for (size_t at = 0; at + 2 < uses.size(); at += 3) touches.push_back({uses[at], uses[at + 1], uses[at + 2] != 0});
  return Napi::Boolean::New(info.Env(), device_->QueueWork(stream, std::move(touches)));
}

Napi::Value NativeMockDevice::CompleteStream(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), device_->CompleteStream(ToUint64(info[0])));
}

Napi::Value NativeMockDevice::CompleteAll(const Napi::CallbackInfo& info) {
  device_->CompleteAll();
  return info.Env().Undefined();
}

Napi::Value NativeMockDevice::PendingWork(const Napi::CallbackInfo& info) {
  return FromCount(info.Env(), device_->PendingWork());
}

Napi::Value NativeMockDevice::Journal(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::vector<mock::JournalEntry> entries = device_->JournalEntries();
  Napi::Array all = Napi::Array::New(env, entries.size());
  for (uint32_t index = 0; index < entries.size(); ++index) {
    const mock::JournalEntry& from = entries[index];
    const char* result_name = cuda::ResultName(from.result);
    Napi::Object to = Napi::Object::New(env);
    to.Set("step", FromCount(env, from.step));
    to.Set("call", mock::CallName(from.kind));
    to.Set("result", static_cast<int32_t>(from.result));
    to.Set("resultName", result_name != nullptr ? result_name : "");
    SetArguments(env, from.arguments, to);
    all.Set(index, to);
  }
  return all;
}

Napi::Value NativeMockDevice::ClearJournal(const Napi::CallbackInfo& info) {
  device_->ClearJournal();
  return info.Env().Undefined();
}

Napi::Value NativeMockDevice::CallCounts(const Napi::CallbackInfo& info) {
  const std::vector<uint64_t> counts = device_->CallCounts();
  Napi::Object to = Napi::Object::New(info.Env());
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    to.Set(mock::kCallNames[kind], FromCount(info.Env(), counts[kind]));
  }
  return to;
}

Napi::Value NativeMockDevice::ResetCallCounts(const Napi::CallbackInfo& info) {
  device_->ResetCallCounts();
  return info.Env().Undefined();
}

Napi::Value NativeMockDevice::Leaks(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const mock::LeakReport from = device_->Leaks();
  Napi::Object to = Napi::Object::New(env);
  SetLeftovers(env, from.live, to);
  to.Set("pageBytes", FromCount(env, from.page_bytes));
  to.Set("modules", FromCount(env, from.modules));
  to.Set("graphs", FromCount(env, from.graphs));
  to.Set("retainedContexts", FromCount(env, from.retained_contexts));
  to.Set("pushedContexts", FromCount(env, from.pushed_contexts));
  Napi::Object left_by_drivers = Napi::Object::New(env);
  SetLeftovers(env, from.left_by_drivers, left_by_drivers);
  to.Set("leftByDrivers", left_by_drivers);
  to.Set("isLost", from.is_lost);
  return to;
}

Napi::Value NativeMockDevice::Misuses(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::vector<mock::Misuse> misuses = device_->Misuses();
  Napi::Array all = Napi::Array::New(env, misuses.size());
  for (uint32_t index = 0; index < misuses.size(); ++index) {
    const mock::Misuse& from = misuses[index];
    Napi::Object to = Napi::Object::New(env);
    to.Set("step", FromCount(env, from.step));
    to.Set("call", mock::CallName(from.kind));
    to.Set("rule", from.rule);
    to.Set("earlierStep", FromCount(env, from.earlier_step));
    SetArguments(env, from.arguments, to);
    all.Set(index, to);
  }
  return all;
}

Napi::Value NativeMockDevice::ClearMisuses(const Napi::CallbackInfo& info) {
  device_->ClearMisuses();
  return info.Env().Undefined();
}

void DefineMockDevice(Napi::Env env, Napi::Object exports) { NativeMockDevice::Define(env, exports); }

}  // namespace vkv::addon
