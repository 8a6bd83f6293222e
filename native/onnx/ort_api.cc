#include "onnx/ort_api.h"

#include <dlfcn.h>

namespace vkv::onnx {
namespace {

struct ApiBase {
  void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

}  // namespace

int64_t BytesOf(Element element) {
  switch (element) {
    case Element::kInt64: return 8;
    case Element::kFloat:
    case Element::kInt32: return 4;
    case Element::kFloat16: return 2;
    case Element::kUint8:
    case Element::kBool: return 1;
  }
  return 0;
}

Status OrtApi::Load(const std::string& path, std::shared_ptr<const OrtApi>& api, std::string& text) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    text = error == nullptr ? "" : error;
    return Fail(Code::kOnnxUnavailable, "dlopen");
  }
  const auto get_base = reinterpret_cast<const ApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  const ApiBase* const base = get_base == nullptr ? nullptr : get_base();
  if (base == nullptr) {
    text = "it has no `OrtGetApiBase`";
    return Fail(Code::kOnnxUnavailable, "OrtGetApiBase");
  }
  auto loaded = std::make_shared<OrtApi>();
  loaded->table_ = base->GetApi(kVersion);
  loaded->version_ = base->GetVersionString();
  if (loaded->table_ == nullptr) {
    text = std::string("it is version ") + loaded->version_;
    return Fail(Code::kOnnxUnavailable, "GetApi");
  }
  api = std::move(loaded);
  return Ok();
}

}  // namespace vkv::onnx
