// Questions about what the driver allows, and what its mapping calls cost while nothing else runs.
#include <thread>

#include "gpu.h"

namespace vkv::probe {
namespace {

constexpr uint8_t kFirst = 0xa1;
constexpr uint8_t kSecond = 0xb2;
constexpr int kRounds = 20;

// The documentation forbids it. Some say that CUDA maps it anyway.
void MapOverMapped(Gpu& gpu, const char* name) {
  const size_t bytes = gpu.page_bytes();
  const CUdeviceptr address = gpu.Reserve(2 * bytes);
  const auto pages = gpu.MapPages(address, 2);
  gpu.Fill(address, kFirst, bytes);
  gpu.Fill(address + bytes, kSecond, bytes);
  Line line(name);
  line.Result("samePage", gpu.api().cuMemMap(address, bytes, 0, pages[0], 0));
  const CUresult other = gpu.api().cuMemMap(address, bytes, 0, pages[1], 0);
  line.Result("otherPage", other);
  if (other == CUDA_SUCCESS) Must(gpu.SetAccess(address, bytes), "cuMemSetAccess");
  line.Text("afterwardsItIs", gpu.ByteAt(address) == kFirst ? "the first page" : "the second page");
}

void PartOfAPage(Gpu& gpu, const char* name) {
  const size_t bytes = gpu.page_bytes();
  const CUdeviceptr address = gpu.Reserve(4 * bytes);
  const CUmemGenericAllocationHandle page = gpu.Create(2 * bytes);
  Line line(name);
  const CUresult prefix = gpu.api().cuMemMap(address, bytes, 0, page, 0);
  line.Result("mapTheFirstHalf", prefix);
  if (prefix == CUDA_SUCCESS) line.Result("accessToTheFirstHalf", gpu.SetAccess(address, bytes));
  line.Result("mapTheSecondHalf", gpu.api().cuMemMap(address + bytes, bytes, bytes, page, 0));
  const CUresult whole = gpu.api().cuMemMap(address + 2 * bytes, 2 * bytes, 0, page, 0);
  line.Result("mapTheWhole", whole);
  if (whole == CUDA_SUCCESS) line.Result("unmapHalfOfTheWhole", gpu.api().cuMemUnmap(address + 2 * bytes, bytes));
}

// Every way of touching a page that may only be read, on the device.
void ReadOnly(Gpu& gpu, const char* name) {
  const size_t bytes = gpu.page_bytes();
  const CUdeviceptr address = gpu.Reserve(2 * bytes);
  const auto pages = gpu.MapPages(address, 1);
  gpu.Fill(address, kFirst, bytes);
  Must(gpu.api().cuMemMap(address + bytes, bytes, 0, pages[0], 0), "cuMemMap");  // the same page again
  Line line(name);
  line.Result("setAccess", gpu.SetAccess(address + bytes, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ));
  unsigned long long flags = 0;
  const CUmemAccessDesc access = gpu.Access();
  if (gpu.api().cuMemGetAccess(&flags, &access.location, address + bytes) == CUDA_SUCCESS) {
    line.Number("accessFlags", static_cast<double>(flags));
  }
  uint8_t byte = 0;
  line.Result("read", gpu.api().cuMemcpyDtoH(&byte, address + bytes, 1)).Bool("readsThePage", byte == kFirst);
  const CUresult fill = gpu.api().cuMemsetD8Async(address + bytes, kSecond, bytes, nullptr);
  line.Result("fill", fill).Result("synchronizeAfterTheFill", gpu.api().cuStreamSynchronize(nullptr));
  byte = 0;
  line.Result("readTheOtherAddress", gpu.api().cuMemcpyDtoH(&byte, address, 1));
  line.Bool("theFillArrived", byte == kSecond);
}

void RecycledContent(Gpu& gpu, const char* name) {
  constexpr int kPages = 64;
  const size_t bytes = gpu.page_bytes();
  const CUdeviceptr address = gpu.Reserve(kPages * bytes);
  const auto old_pages = gpu.MapPages(address, kPages);
  gpu.Fill(address, kFirst, kPages * bytes);
  Must(gpu.api().cuMemUnmap(address, kPages * bytes), "cuMemUnmap");
  for (const auto page : old_pages) Must(gpu.api().cuMemRelease(page), "cuMemRelease");
  gpu.MapPages(address, kPages);
  int zeros = 0;
  int old = 0;
  for (int page = 0; page < kPages; ++page) {
    const uint8_t byte = gpu.ByteAt(address + page * bytes + bytes / 2);
    zeros += byte == 0 ? 1 : 0;
    old += byte == kFirst ? 1 : 0;
  }
  Line(name).Number("pages", kPages).Number("pagesOfZeros", zeros).Number("pagesWithOldContent", old);
}

// Asked twice: by a process that never had a context, and by a thread without a current one.
void WithoutContext(Gpu& gpu, const char* name, const char* when) {
  const size_t bytes = gpu.page_bytes();
  const CUmemAllocationProp properties = gpu.PageProperties();
  CudaApi& api = gpu.api();
  size_t granularity = 0;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle page = 0;
  Line line(name);
  line.Text("when", when);
  line.Result("granularity",
              api.cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const CUresult reserve = api.cuMemAddressReserve(&address, bytes, bytes, 0, 0);
  const CUresult create = api.cuMemCreate(&page, bytes, &properties, 0);
  line.Result("reserve", reserve).Result("create", create);
  if (reserve == CUDA_SUCCESS && create == CUDA_SUCCESS) {
    line.Result("map", api.cuMemMap(address, bytes, 0, page, 0));
    line.Result("setAccess", gpu.SetAccess(address, bytes));
    line.Result("unmap", api.cuMemUnmap(address, bytes));
  }
  if (create == CUDA_SUCCESS) line.Result("release", api.cuMemRelease(page));
  if (reserve == CUDA_SUCCESS) line.Result("addressFree", api.cuMemAddressFree(address, bytes));
}

void NoContext(Gpu& gpu, const char* name) {
  WithoutContext(gpu, name, "no context was ever made");
  gpu.MakeCurrent();
  std::thread([&] { WithoutContext(gpu, name, "another thread has it"); }).join();
}

// One call over a run of mappings, against one call for each.
void RunLength(Gpu& gpu, const char* name) {
  const size_t bytes = gpu.page_bytes();
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  Must(gpu.api().cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  for (const int pages : {1, 2, 4, 8, 16, 32, 64, 256, 1024}) {
    if (pages * bytes > free_bytes) break;
    const CUdeviceptr address = gpu.Reserve(pages * bytes);
    std::vector<CUmemGenericAllocationHandle> handles;
    for (int page = 0; page < pages; ++page) handles.push_back(gpu.Create(bytes));
    std::vector<double> access_once, access_each, unmap_once, unmap_each;
    const auto map_all = [&] {
      for (int page = 0; page < pages; ++page) {
        Must(gpu.api().cuMemMap(address + page * bytes, bytes, 0, handles[page], 0), "cuMemMap");
      }
    };
    for (int round = 0; round < kRounds; ++round) {
      map_all();
      access_once.push_back(TimeUs([&] { Must(gpu.SetAccess(address, pages * bytes), "cuMemSetAccess"); }));
      unmap_once.push_back(TimeUs([&] { Must(gpu.api().cuMemUnmap(address, pages * bytes), "cuMemUnmap"); }));
      map_all();
      access_each.push_back(TimeUs([&] {
        for (int page = 0; page < pages; ++page) Must(gpu.SetAccess(address + page * bytes, bytes), "cuMemSetAccess");
      }));
      unmap_each.push_back(TimeUs([&] {
        for (int page = 0; page < pages; ++page)
          Must(gpu.api().cuMemUnmap(address + page * bytes, bytes), "cuMemUnmap");
      }));
    }
    for (const auto handle : handles) Must(gpu.api().cuMemRelease(handle), "cuMemRelease");
    Must(gpu.api().cuMemAddressFree(address, pages * bytes), "cuMemAddressFree");
    Line(name)
        .Number("pages", pages)
        .Times("accessOneCall", access_once)
        .Times("accessCallEach", access_each)
        .Times("unmapOneCall", unmap_once)
        .Times("unmapCallEach", unmap_each);
  }
}

void UnmapAcrossAHole(Gpu& gpu, const char* name) {
  const size_t bytes = gpu.page_bytes();
  const CUdeviceptr address = gpu.Reserve(3 * bytes);
  gpu.MapPages(address, 1);
  gpu.MapPages(address + 2 * bytes, 1);
  Line(name)
      .Result("unmap", gpu.api().cuMemUnmap(address, 3 * bytes))
      .Result("setAccess", gpu.SetAccess(address, 3 * bytes));
}

// What larger pages would save.
void PageSizes(Gpu& gpu, const char* name) {
  for (const int multiple : {1, 2, 4, 8, 16, 32, 64, 128}) {
    const size_t bytes = multiple * gpu.page_bytes();
    const CUdeviceptr address = gpu.Reserve(bytes);
    std::vector<double> create, map, access, unmap, release;
    for (int round = 0; round < kRounds; ++round) {
      CUmemGenericAllocationHandle page = 0;
      create.push_back(TimeUs([&] { page = gpu.Create(bytes); }));
      map.push_back(TimeUs([&] { Must(gpu.api().cuMemMap(address, bytes, 0, page, 0), "cuMemMap"); }));
      access.push_back(TimeUs([&] { Must(gpu.SetAccess(address, bytes), "cuMemSetAccess"); }));
      unmap.push_back(TimeUs([&] { Must(gpu.api().cuMemUnmap(address, bytes), "cuMemUnmap"); }));
      release.push_back(TimeUs([&] { Must(gpu.api().cuMemRelease(page), "cuMemRelease"); }));
    }
    Must(gpu.api().cuMemAddressFree(address, bytes), "cuMemAddressFree");
    Line(name)
        .Number("pageBytes", static_cast<double>(bytes))
        .Times("create", create)
        .Times("map", map)
        .Times("setAccess", access)
        .Times("unmap", unmap)
        .Times("release", release);
  }
}

}  // namespace

const std::vector<NamedQuestion> kMappingQuestions = {
    {"map over a mapped page", true, MapOverMapped},
    {"map part of a page", true, PartOfAPage},
    {"read-only access", true, ReadOnly},
    {"content of recycled pages", true, RecycledContent},
    {"without a current context", false, NoContext},
    {"access and unmap over a run", true, RunLength},
    {"unmap across a hole", true, UnmapAcrossAHole},
    {"page sizes", true, PageSizes},
};

}  // namespace vkv::probe
