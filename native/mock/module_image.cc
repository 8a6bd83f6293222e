#include "mock/module_image.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

namespace vkv::mock {
namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint16_t kFatbinVersion = 1;
constexpr uint16_t kFatbinHeaderBytes = 16;
constexpr int32_t kOldestOfFatbin = 11'000;  // the first that knows what the kernels' code is compiled for

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // that follow
};
static_assert(sizeof(FatbinHeader) == kFatbinHeaderBytes);

// The PTX version of a CUDA version: 11.0 brought 7.0, 12.0 8.0, 13.0 9.0, and each minor version the next.
int32_t PtxVersionOf(int32_t driver_version) { return (driver_version / 1000 - 4) * 10 + driver_version % 1000 / 10; }

// The number behind a directive, "major.minor" as 10 · major + minor, "sm_NN" as NN; -1 when the text has none.
int32_t NumberAfter(std::string_view text, std::string_view directive) {
  const size_t at = text.find(directive);
  if (at == std::string_view::npos) return -1;
  size_t next = at + directive.size();
  while (next < text.size() && std::isdigit(static_cast<unsigned char>(text[next])) == 0 && text[next] != '\n') ++next;
  int32_t number = -1;
  for (; next < text.size(); ++next) {
    if (text[next] == '.') continue;
    if (std::isdigit(static_cast<unsigned char>(text[next])) == 0) break;
    number = (number < 0 ? 0 : number) * 10 + (text[next] - '0');
  }
  return number;
}

void ReadEntries(std::string_view text, ModuleImage& read) {
  constexpr std::string_view kEntry = ".entry ";
  for (size_t at = text.find(kEntry); at != std::string_view::npos; at = text.find(kEntry, at + 1)) {
    const size_t begin = at + kEntry.size();
    const size_t end = text.find_first_of("( \n", begin);
    read.entries.emplace(text.substr(begin, end == std::string_view::npos ? end : end - begin));
  }
}

}  // namespace

CUresult ReadImage(const void* image, int32_t driver_version, int32_t compute_capability, ModuleImage& read,
                   std::string& log) {
  FatbinHeader header;
  std::memcpy(&header.magic, image, sizeof(header.magic));
  if (header.magic == kFatbinMagic) {
    std::memcpy(&header, image, sizeof(header));
    const bool is_whole =
        header.version == kFatbinVersion && header.header_bytes == kFatbinHeaderBytes && header.bytes != 0;
    if (!is_whole) return CUDA_ERROR_INVALID_IMAGE;
    return driver_version < kOldestOfFatbin ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
  }
  const std::string_view text = static_cast<const char*>(image);
  if (!text.starts_with(".version")) return CUDA_ERROR_INVALID_IMAGE;
  const int32_t version = NumberAfter(text, ".version");
  const int32_t target = NumberAfter(text, ".target");
  const int32_t newest = PtxVersionOf(driver_version);
  if (version > newest) {
    log = "ptxas application ptx input, line 1; fatal   : Unsupported .version " + std::to_string(version / 10) + "." +
          std::to_string(version % 10) + "; current version is '" + std::to_string(newest / 10) + "." +
          std::to_string(newest % 10) + "'\n";
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  if (version < 0 || target < 0) {
    log = "ptxas application ptx input, line 2; fatal   : Missing .target directive\n";
    return CUDA_ERROR_INVALID_PTX;
  }
  if (target > compute_capability) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  read.is_ptx = true;
  ReadEntries(text, read);
  return CUDA_SUCCESS;
}

}  // namespace vkv::mock
