// probe: measures what the documentation of the NVIDIA driver leaves open, one question per process.
//
//   probe --list                                 the questions, one name per line
//   probe QUESTION [LIBRARY]                     one JSON object per line; LIBRARY replaces the system's
//   libcuda.so.1
//
// Beside it lie kernels-sm80.ptx and block-table.ptx, for the one about block tables.
//
// It makes the raw calls, also those that the Driver interface refuses. Exit code 1: a call failed that must
// succeed, and the last line says which. Against the simulated device (test/native/fake_libcuda.cc) it proves
// only that the questions run: its times mean nothing, and its answers are our own rules.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu.h"

int main(int argc, char** argv) {
  using namespace vkv::probe;
  std::vector<NamedQuestion> questions = kMappingQuestions;
  for (const auto& more : {kRunningQuestions, kContentionQuestions, kTransferQuestions, kBlockTableQuestions})
    questions.insert(questions.end(), more.begin(), more.end());
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const NamedQuestion& question : questions) std::puts(question.name);
    return 0;
  }
  if (argc == 4 && std::strcmp(argv[1], "--import") == 0) {  // a question's other process
    Gpu gpu(argv[3]);
    gpu.MakeCurrent();
    return ImportPage(gpu, std::atoi(argv[2]));
  }
  for (const NamedQuestion& question : questions) {
    if (argc < 2 || std::strcmp(argv[1], question.name) != 0) continue;
    Gpu gpu(argc > 2 ? argv[2] : nullptr);
    if (question.needs_context) gpu.MakeCurrent();
    question.ask(gpu, question.name);
    return 0;
  }
  std::fprintf(stderr, "Usage: probe --list | QUESTION [LIBRARY]\n");
  return 2;
}
