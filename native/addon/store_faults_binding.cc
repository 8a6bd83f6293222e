#include "addon/store_faults_binding.h"

#include <cstring>

#include "addon/arguments.h"
#include "addon/context.h"

namespace vkv::addon {

void NativeStoreFaults::Define(Napi::Env env, Napi::Object exports) {
  using Faults = NativeStoreFaults;
  exports.Set("NativeStoreFaults",
              DefineClass(env, "NativeStoreFaults",
                          {InstanceMethod<&Faults::Add>("add"), InstanceMethod<&Faults::KillAt>("killAt"),
                           InstanceMethod<&Faults::Clear>("clear"), InstanceMethod<&Faults::Held>("held"),
                           InstanceMethod<&Faults::Counts>("counts"), InstanceMethod<&Faults::Points>("points"),
                           InstanceMethod<&Faults::StartJournal>("startJournal"),
                           InstanceMethod<&Faults::JournalLength>("journalLength"),
                           InstanceMethod<&Faults::TakeJournal>("takeJournal")}));
}

NativeStoreFaults::NativeStoreFaults(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeStoreFaults>(info) {
  napi_type_tag_object(info.Env(), info.This(), &kTag);
}

Napi::Value NativeStoreFaults::Add(const Napi::CallbackInfo& info) {
  Arguments given(info, "add");
  store::FileFault fault;
  const std::string call = given.String(0);
  fault.any_kind = call.empty();
  if (!fault.any_kind && !store::FileCallFromName(call, fault.kind)) given.Refuse();
  fault.nth = static_cast<uint64_t>(given.Integer(1, 1, kLargestInteger));
  fault.times = static_cast<uint64_t>(given.Integer(2, 1, kLargestInteger));
  fault.error = static_cast<int>(given.Integer(3, 0, 4096));
  fault.most_bytes = given.Integer(4, -1, kLargestInteger);
  fault.flipped_bit = given.Integer(5, -1, kLargestInteger);
  fault.kills = given.Boolean(6);
  fault.holds = given.Boolean(7);
  if (!ThrowIfFailed(info.Env(), given.status())) faults_->Add(fault);
  return info.Env().Undefined();
}

Napi::Value NativeStoreFaults::KillAt(const Napi::CallbackInfo& info) {
  Arguments given(info, "killAt");
  const std::string point = given.String(0);
  const auto nth = static_cast<uint64_t>(given.Integer(1, 1, kLargestInteger));
  if (!ThrowIfFailed(info.Env(), given.status())) faults_->KillAt(point, nth);
  return info.Env().Undefined();
}

Napi::Value NativeStoreFaults::Clear(const Napi::CallbackInfo& info) {
  faults_->Clear();
  return info.Env().Undefined();
}

Napi::Value NativeStoreFaults::Held(const Napi::CallbackInfo& info) { return FromCount(info.Env(), faults_->held()); }

Napi::Value NativeStoreFaults::Counts(const Napi::CallbackInfo& info) {
  auto result = Napi::Object::New(info.Env());
  const auto counts = faults_->Counts();
  for (size_t kind = 0; kind < counts.size(); ++kind)
    result.Set(store::FileCallName(kind), FromCount(info.Env(), counts[kind]));
  return result;
}

Napi::Value NativeStoreFaults::Points(const Napi::CallbackInfo& info) {
  auto result = Napi::Object::New(info.Env());
  for (const auto& [name, count] : faults_->Points()) result.Set(name, FromCount(info.Env(), count));
  return result;
}

Napi::Value NativeStoreFaults::StartJournal(const Napi::CallbackInfo& info) {
  faults_->StartJournal();
  return info.Env().Undefined();
}

Napi::Value NativeStoreFaults::JournalLength(const Napi::CallbackInfo& info) {
  return FromCount(info.Env(), faults_->JournalLength());
}

Napi::Value NativeStoreFaults::TakeJournal(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::vector<store::FileChange> journal = faults_->TakeJournal();
  auto result = Napi::Array::New(env, journal.size());
  for (uint32_t k = 0; k < journal.size(); ++k) {
    const store::FileChange& change = journal[k];
    auto entry = Napi::Object::New(env);
    entry.Set("call", store::FileCallName(static_cast<size_t>(change.kind)));
    entry.Set("path", change.path);
    entry.Set("other", change.other);
    entry.Set("offset", FromCount(env, change.offset));
    auto bytes = Napi::Uint8Array::New(env, change.bytes.size());
    if (!change.bytes.empty()) std::memcpy(bytes.Data(), change.bytes.data(), change.bytes.size());
    entry.Set("bytes", bytes);
    result.Set(k, entry);
  }
  return result;
}

}  // namespace vkv::addon
