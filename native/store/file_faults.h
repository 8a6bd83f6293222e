// FileFaults: what a test makes of a store's system calls: the n-th fails, moves fewer bytes, flips a bit, waits or is
// the process's last; and a journal of everything that changes files, from which a test builds what a loss of power may
// leave. Only virtual-kv/testing makes one; without it FileCalls costs nothing more. Threads: any.
#ifndef VKV_STORE_FILE_FAULTS_H_
#define VKV_STORE_FILE_FAULTS_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace vkv::store {

enum class FileCall : uint8_t {
  kOpen,
  kRead,
  kWrite,
  kSync,
  kSyncFolder,
  kRename,
  kUnlink,
  kMakeFolder,
  kLock,
  kReadFolder,
  kSize,
};
inline constexpr size_t kFileCallKinds = 11;

// "open", "read" and so on; null beyond the last.
const char* FileCallName(size_t kind);
// The kind of that name; false when there is none.
bool FileCallFromName(std::string_view name, FileCall& kind);

// What becomes of the calls of a kind from the `nth` on (1: the next), `times` of them.
struct FileFault {
  bool any_kind = false;
  FileCall kind = FileCall::kRead;
  uint64_t nth = 1;
  uint64_t times = 1;
  int error = 0;             // errno; 0: the call is made
  int64_t most_bytes = -1;   // of a read or write; -1: all
  int64_t flipped_bit = -1;  // of what a read delivered; -1: none
  bool kills = false;        // SIGKILL before the call
  bool holds = false;        // the call waits for Clear
};

// One change of a file, or a sync.
struct FileChange {
  FileCall kind;
  std::string path;
  std::string other;    // rename: the new name
  uint64_t offset = 0;  // write: where; sync: changes before this one of the journal are safe
  std::vector<uint8_t> bytes;
};

class FileFaults {
 public:
  struct Verdict {
    int error = 0;
    int64_t most_bytes = -1;
    int64_t flipped_bit = -1;
  };

  void Add(const FileFault& fault);
  // The process ends by SIGKILL when it comes to the named point for the `nth` time from now on (1: the next).
  void KillAt(std::string point, uint64_t nth);
  // Takes all faults back; held calls go on.
  void Clear();
  // Calls that wait.
  uint64_t held() const;
  // Calls so far, by kind.
  std::array<uint64_t, kFileCallKinds> Counts() const;
  // How often each named point was passed.
  std::unordered_map<std::string, uint64_t> Points() const;

  void StartJournal();
  uint64_t JournalLength() const;
  std::vector<FileChange> TakeJournal();

  // For FileCalls.
  Verdict Before(FileCall kind);
  void Pass(const char* point);
  void Opened(int file, const std::string& path, bool is_created);
  std::string PathOf(int file) const;
  void Note(FileChange change);

 private:
  mutable std::mutex mutex_;  // guards all below
  std::vector<FileFault> faults_;
  std::condition_variable cleared_;
  uint64_t clearings_ = 0, held_ = 0;
  std::array<uint64_t, kFileCallKinds> counts_{};
  std::unordered_map<std::string, uint64_t> points_;
  std::string kill_point_;
  uint64_t kill_nth_ = 0;
  bool has_journal_ = false;
  std::vector<FileChange> journal_;
  std::unordered_map<int, std::string> paths_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_FILE_FAULTS_H_
