#include "addon/answer_channel.h"

#include "addon/context.h"

namespace vkv::addon {

std::shared_ptr<AnswerChannel> AnswerChannel::Open(Napi::Env env, Napi::Function on_answer) {
  auto channel = std::make_shared<AnswerChannel>();
  napi_value name = nullptr;
  if (napi_create_string_utf8(env, "DiskStore", NAPI_AUTO_LENGTH, &name) != napi_ok) return nullptr;
  // Node.js has a share of it until the function is finalized.
  auto* const share = new std::shared_ptr<AnswerChannel>(channel);
  const auto finalize = [](napi_env, void* data, void*) { delete static_cast<std::shared_ptr<AnswerChannel>*>(data); };
  const napi_status status = napi_create_threadsafe_function(env, on_answer, nullptr, name, 0, 1, share, finalize,
                                                             channel.get(), Drain, &channel->function_);
  if (status != napi_ok) {
    delete share;
    return nullptr;
  }
  (void)napi_unref_threadsafe_function(env, channel->function_);
  return channel;
}

void AnswerChannel::Deliver(store::Answer&& answer) {
  {
    std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
    if (answers_.size() > 1) return;  // it is about to be called
  }
  (void)napi_call_threadsafe_function(function_, nullptr, napi_tsfn_nonblocking);
}

void AnswerChannel::Expect(napi_env env) {
  if (expected_++ == 0 && function_ != nullptr) (void)napi_ref_threadsafe_function(env, function_);
}

void AnswerChannel::Close() {
  if (function_ == nullptr) return;
  (void)napi_release_threadsafe_function(function_, napi_tsfn_abort);
  function_ = nullptr;
}

void AnswerChannel::Drain(napi_env env, napi_value on_answer, void* context, void* /*data*/) {
  if (env == nullptr || on_answer == nullptr) return;  // the environment ends
  const std::shared_ptr<AnswerChannel> channel = static_cast<AnswerChannel*>(context)->shared_from_this();
  std::vector<store::Answer> answers;
  {
    std::lock_guard lock(channel->mutex_);
    answers.swap(channel->answers_);
  }
  for (store::Answer& answer : answers) {
    if (answer.id != 0 && --channel->expected_ == 0 && channel->function_ != nullptr)
      (void)napi_unref_threadsafe_function(env, channel->function_);
    channel->Hand(env, on_answer, answer);
  }
}

// Plain Node-API: where JavaScript can no longer run, each of these calls fails without a further effect.
void AnswerChannel::Hand(napi_env env, napi_value on_answer, store::Answer& answer) {
  napi_handle_scope scope = nullptr;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  napi_value arguments[4] = {}, buffer = nullptr, receiver = nullptr;
  void* data = nullptr;
  bool is_made = napi_get_undefined(env, &receiver) == napi_ok &&
                 napi_create_double(env, static_cast<double>(answer.id), &arguments[0]) == napi_ok;
  arguments[1] = MakeError(env, answer.status, {}, answer.path);
  const size_t number_bytes = answer.numbers.size() * sizeof(double);
  is_made = is_made && napi_create_arraybuffer(env, number_bytes, &data, &buffer) == napi_ok;
  if (is_made && number_bytes > 0) std::memcpy(data, answer.numbers.data(), number_bytes);
  is_made =
      is_made &&
      napi_create_typedarray(env, napi_float64_array, answer.numbers.size(), buffer, 0, &arguments[2]) == napi_ok &&
      napi_create_arraybuffer(env, answer.bytes.size(), &data, &buffer) == napi_ok;
  if (is_made && !answer.bytes.empty()) std::memcpy(data, answer.bytes.data(), answer.bytes.size());
  is_made = is_made &&
            napi_create_typedarray(env, napi_uint8_array, answer.bytes.size(), buffer, 0, &arguments[3]) == napi_ok;
  if (is_made && arguments[1] != nullptr) (void)napi_call_function(env, receiver, on_answer, 4, arguments, nullptr);
  (void)napi_close_handle_scope(env, scope);
}

}  // namespace vkv::addon
