#include "block_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "crc32c.h"

namespace vkv {
namespace {

// Of a lane's buffer: enough that waiting costs little, and two of them stay in the CPU's last cache.
constexpr uint64_t kLaneBytes = 1 << 20;
// Runs of at least so many bytes are copied and summed at once; shorter ones in batches, first copied, then summed.
constexpr uint64_t kLongRunBytes = 1024;
// Such a batch stays in the CPU's first cache.
constexpr uint64_t kBatchBytes = 16 << 10;

// Copies `count` runs of `bytes` bytes that lie `stride` bytes apart to where they follow each other, or back, and
// returns the sum of all behind `sum`.
template <bool kPacks>
uint32_t CopyRuns(uint8_t* packed, uint8_t* apart, uint64_t stride, uint64_t bytes, uint64_t count, uint32_t sum) {
  if (stride == bytes) {
    return kPacks ? CopyWithCrc32c(packed, apart, count * bytes, sum)
                  : CopyWithCrc32c(apart, packed, count * bytes, sum);
  }
  if (bytes >= kLongRunBytes) {
    for (uint64_t k = 0; k < count; ++k, packed += bytes, apart += stride)
      sum = kPacks ? CopyWithCrc32c(packed, apart, bytes, sum) : CopyWithCrc32c(apart, packed, bytes, sum);
    return sum;
  }
  const uint64_t batch = std::max<uint64_t>(1, kBatchBytes / bytes);
  for (uint64_t done = 0; done < count; done += batch) {
    const uint64_t now = std::min(batch, count - done);
    for (uint64_t k = 0; k < now; ++k, apart += stride)
      std::memcpy(kPacks ? packed + k * bytes : apart, kPacks ? apart : packed + k * bytes, bytes);
    sum = Crc32c(packed, now * bytes, sum);
    packed += now * bytes;
  }
  return sum;
}

}  // namespace

BlockCopier::BlockCopier(KvCache& cache, std::vector<TensorSpan> tensors, std::vector<TensorProbe> probes,
                         std::function<void(const BlockCopied&)> done)
    : cache_(cache),
      tensors_(std::move(tensors)),
      probes_(std::move(probes)),
      done_(std::move(done)),
      is_direct_(cache.driver().info().has_host_access && !cache.driver().info().has_streams),
      by_reservation_(cache.layout().reservations()) {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    by_reservation_[tensors_[t].reservation].push_back(t);
    stripe_starts_.push_back(token_bytes_);
    token_bytes_ += tensors_[t].bytes;
  }
  for (const TensorProbe& probe : probes_) {
    probe_bytes_ += probe.bytes;
    has_probes_ = has_probes_ && probe.tensor < tensors_.size() && probe.bytes <= tensors_[probe.tensor].bytes;
  }
  lane_bytes_ = kLaneBytes;
  for (size_t i = 0; i < by_reservation_.size(); ++i)
    lane_bytes_ = std::max(lane_bytes_, cache_.layout().token_bytes(i));
}

BlockCopier::~BlockCopier() { (void)Close(); }

Status BlockCopier::Start(int threads) {
  for (int k = 0; k < threads; ++k) lanes_.push_back(std::make_unique<Lanes>());
  for (int started = 0; started < threads; ++started) {
    auto thread = std::make_unique<QuietThread>();
    const Status status = thread->Start<BlockCopier, &BlockCopier::Run, Standing::kBackground>(this, "vkv-copier");
    if (!status.ok()) return threads_.empty() ? status : Ok();
    threads_.push_back(std::move(thread));
  }
  return Ok();
}

Status BlockCopier::Gate(Stream& gate) {
  if (!gate_) {
    DriverScope scope(cache_.driver());
    VKV_RETURN_IF_ERROR(scope.status());
    Stream made = 0;
    VKV_RETURN_IF_ERROR(cache_.driver().CreateStream(made));
    gate_ = made;
  }
  gate = *gate_;
  return Ok();
}

Status BlockCopier::Begin(const BlockCopy& copy) {
  const bool fits = has_probes_ && copy.skipped + copy.tokens <= copy.block_tokens &&
                    BlockBytes(copy.block_tokens) <= copy.payload_bytes;
  if (!fits) return Fail(Code::kInternal, "BlockCopier", copy.slot, static_cast<int64_t>(copy.tokens));
  VKV_RETURN_IF_ERROR(cache_.CheckTokens(copy.slot, copy.from, copy.from + copy.tokens));
  Queued queued{copy, std::nullopt};
  if (copy.is_ordered && gate_) {
    DriverScope scope(cache_.driver());
    VKV_RETURN_IF_ERROR(scope.status());
    Event event = 0;
    VKV_RETURN_IF_ERROR(cache_.driver().RecordEvent(*gate_, event));
    queued.behind = event;
  }
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(queued);
  }
  wake_.notify_one();
  return Ok();
}

size_t BlockCopier::Cancel() {
  std::deque<Queued> dropped;
  {
    std::unique_lock lock(mutex_);
    dropped.swap(queue_);
    finished_.wait(lock, [this] { return running_ == 0; });
  }
  if (dropped.empty()) return 0;
  DriverScope scope(cache_.driver());
  for (const Queued& queued : dropped) (void)DropEvent(queued.behind);
  return dropped.size();
}

void BlockCopier::Stop() {
  (void)Cancel();
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  for (const auto& thread : threads_) thread->Join();
  threads_.clear();
}

Status BlockCopier::Close() {
  Stop();
  if (lanes_.empty() && !gate_) return Ok();
  DriverScope scope(cache_.driver());
  if (!scope.status().ok() && scope.status().code != Code::kDriverLost) return scope.status();
  for (const auto& lanes : lanes_)
    for (CopyLane& lane : *lanes) VKV_RETURN_IF_ERROR(lane.Close(cache_.driver()));
  lanes_.clear();
  pinned_bytes_ = pageable_bytes_ = 0;
  if (!gate_) return Ok();
  const Status status = cache_.driver().DestroyStream(*gate_);
  if (!status.ok() && status.code != Code::kDriverLost) return status;
  gate_.reset();
  return Ok();
}

std::optional<BlockCopier::Staging> BlockCopier::staging() const {
  if (is_direct_) return std::nullopt;
  return Staging{pinned_bytes_, pageable_bytes_};
}

void BlockCopier::Run() {
  Lanes& lanes = *lanes_[started_.fetch_add(1)];
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
    if (is_stopping_) return;
    const Queued queued = queue_.front();
    queue_.pop_front();
    ++running_;
    lock.unlock();
    const BlockCopied copied = Do(queued, lanes);
    lock.lock();
    --running_;
    finished_.notify_all();
    lock.unlock();
    done_(copied);
    lock.lock();
  }
}

BlockCopied BlockCopier::Do(const Queued& queued, Lanes& lanes) {
  const BlockCopy& copy = queued.copy;
  BlockCopied copied{copy.id, Ok(), -1};
  DriverScope scope(cache_.driver());
  copied.status = scope.status();
  if (!copied.status.ok()) return copied;
  copied.status = OpenLanes(queued, lanes);
  if (copied.status.ok()) copied.status = copy.is_load ? Load(copy, lanes, copied.damaged_tensor) : Store(copy, lanes);
  for (CopyLane& lane : lanes) {
    const Status waited = lane.Wait(cache_.driver());
    if (copied.status.ok()) copied.status = waited;
  }
  return copied;
}

// Nothing of the copy comes before what it is ordered behind.
Status BlockCopier::OpenLanes(const Queued& queued, Lanes& lanes) {
  Driver& driver = cache_.driver();
  Status status;
  if (is_direct_ && queued.behind) status = driver.SynchronizeEvent(*queued.behind);
  if (is_direct_) {
    const Status dropped = DropEvent(queued.behind);
    return status.ok() ? dropped : status;
  }
  for (CopyLane& lane : lanes) {
    if (status.ok()) status = OpenLane(lane);
    if (status.ok()) status = lane.Wait(driver);  // where an earlier copy's wait was refused
    if (status.ok() && queued.behind) status = driver.WaitEvent(lane.stream(), *queued.behind);
  }
  const Status dropped = DropEvent(queued.behind);
  if (status.ok()) status = dropped;
  return status.ok() ? driver.Read(nullptr, 0, 0) : status;  // of no bytes: waits for the default stream where it must
}

Status BlockCopier::OpenLane(CopyLane& lane) {
  if (lane.is_open()) return Ok();
  const Status status = lane.Open(cache_.driver(), lane_bytes_);
  if (lane.is_open()) (lane.is_pinned() ? pinned_bytes_ : pageable_bytes_) += lane_bytes_;
  return status;
}

// It is not put off by one refusal: an event that is left would be kept by the device.
Status BlockCopier::DropEvent(std::optional<Event> event) {
  if (!event) return Ok();
  if (cache_.driver().DestroyEvent(*event).ok()) return Ok();
  return cache_.driver().DestroyEvent(*event);
}

uint64_t BlockCopier::TokenAddress(const BlockCopy& copy, size_t reservation) const {
  const Layout& layout = cache_.layout();
  return cache_.address(reservation) + static_cast<uint64_t>(copy.slot) * layout.StripeBytes(reservation) +
         copy.from * layout.token_bytes(reservation);
}

Status BlockCopier::Store(const BlockCopy& copy, Lanes& lanes) {
  std::fill_n(copy.sums, tensors_.size(), 0);
  std::array<std::vector<Piece>, kLanes> under_way;  // by lane, in the order in which they lie there
  size_t at = 0;
  for (size_t i = 0; i < by_reservation_.size(); ++i) {
    const uint64_t address = TokenAddress(copy, i), stride = cache_.layout().token_bytes(i);
    if (is_direct_) {
      Take(copy, {i, 0, copy.tokens}, reinterpret_cast<const uint8_t*>(address), copy.sums);
      continue;
    }
    for (uint64_t first = 0; first < copy.tokens;) {
      if (lanes[at].free_bytes() < stride) {
        at = (at + 1) % kLanes;
        VKV_RETURN_IF_ERROR(Finish(copy, lanes[at], under_way[at]));
      }
      const Piece piece = {i, first, std::min(lanes[at].free_bytes() / stride, copy.tokens - first)};
      VKV_RETURN_IF_ERROR(lanes[at].Download(cache_.driver(), address + first * stride, piece.count * stride));
      under_way[at].push_back(piece);
      first += piece.count;
    }
  }
  for (size_t k = 0; k < kLanes; ++k) {
    at = (at + 1) % kLanes;
    VKV_RETURN_IF_ERROR(Finish(copy, lanes[at], under_way[at]));
  }
  WriteProbes(copy);
  return Ok();
}

void BlockCopier::WriteProbes(const BlockCopy& copy) const {
  uint8_t* to = copy.payload + token_bytes_ * copy.tokens;
  for (size_t k = 0; k < probes_.size(); ++k) {
    const TensorProbe& probe = probes_[k];
    uint8_t* const from = copy.payload + stripe_starts_[probe.tensor] * copy.tokens;
    copy.sums[tensors_.size() + k] =
        CopyRuns</*kPacks=*/true>(to, from, tensors_[probe.tensor].bytes, probe.bytes, copy.tokens, 0);
    to += probe.bytes * copy.tokens;
  }
}

Status BlockCopier::Finish(const BlockCopy& copy, CopyLane& lane, std::vector<Piece>& pieces) {
  VKV_RETURN_IF_ERROR(lane.Wait(cache_.driver()));
  const uint8_t* tokens = lane.free();
  for (const Piece& piece : pieces) {
    Take(copy, piece, tokens, copy.sums);
    tokens += piece.count * cache_.layout().token_bytes(piece.reservation);
  }
  pieces.clear();
  return Ok();
}

void BlockCopier::Take(const BlockCopy& copy, const Piece& piece, const uint8_t* tokens, uint32_t* sums) const {
  const uint64_t stride = cache_.layout().token_bytes(piece.reservation);
  for (const size_t t : by_reservation_[piece.reservation]) {
    const TensorSpan& tensor = tensors_[t];
    uint8_t* to = copy.payload + stripe_starts_[t] * copy.tokens + piece.first * tensor.bytes;
    auto* from = const_cast<uint8_t*>(tokens + tensor.offset_bytes);  // only read
    sums[t] = CopyRuns</*kPacks=*/true>(to, from, stride, tensor.bytes, piece.count, sums[t]);
  }
}

// A reservation's tensors fill its tokens, so that a piece goes to the device in one copy.
Status BlockCopier::Load(const BlockCopy& copy, Lanes& lanes, int32_t& damaged_tensor) {
  std::vector<uint32_t> sums(tensors_.size(), 0);
  size_t at = 0;
  for (size_t i = 0; i < by_reservation_.size(); ++i) {
    const uint64_t address = TokenAddress(copy, i), stride = cache_.layout().token_bytes(i);
    if (is_direct_) Give(copy, {i, 0, copy.block_tokens}, reinterpret_cast<uint8_t*>(address), sums.data());
    for (uint64_t first = 0; first < copy.block_tokens && !is_direct_;) {
      if (lanes[at].free_bytes() < stride) {
        at = (at + 1) % kLanes;
        VKV_RETURN_IF_ERROR(lanes[at].Wait(cache_.driver()));
      }
      CopyLane& lane = lanes[at];
      const Piece piece{i, first, std::min(lane.free_bytes() / stride, copy.block_tokens - first)};
      const Piece wanted = Wanted(copy, piece);
      Give(copy, piece, lane.free(), sums.data());
      first += piece.count;
      if (wanted.count == 0) continue;
      const uint64_t to = address + (wanted.first - copy.skipped) * stride;
      VKV_RETURN_IF_ERROR(lane.Upload(cache_.driver(), to, wanted.count * stride));
    }
    damaged_tensor = Damaged(copy, i, sums.data());
    if (damaged_tensor >= 0) break;
  }
  return Ok();
}

BlockCopier::Piece BlockCopier::Wanted(const BlockCopy& copy, const Piece& piece) {
  const uint64_t first = std::max(piece.first, copy.skipped);
  const uint64_t end = std::min(piece.first + piece.count, copy.skipped + copy.tokens);
  return {piece.reservation, first, end > first ? end - first : 0};
}

void BlockCopier::Give(const BlockCopy& copy, const Piece& piece, uint8_t* tokens, uint32_t* sums) const {
  const uint64_t stride = cache_.layout().token_bytes(piece.reservation);
  const Piece wanted = Wanted(copy, piece);
  const uint64_t before = wanted.count == 0 ? piece.count : wanted.first - piece.first;
  for (const size_t t : by_reservation_[piece.reservation]) {
    const TensorSpan& tensor = tensors_[t];
    uint8_t* const from = copy.payload + stripe_starts_[t] * copy.block_tokens + piece.first * tensor.bytes;
    uint8_t* const behind = from + (before + wanted.count) * tensor.bytes;
    sums[t] = Crc32c(from, before * tensor.bytes, sums[t]);
    sums[t] = CopyRuns</*kPacks=*/false>(from + before * tensor.bytes, tokens + tensor.offset_bytes, stride,
                                         tensor.bytes, wanted.count, sums[t]);
    sums[t] = Crc32c(behind, (piece.count - before - wanted.count) * tensor.bytes, sums[t]);
  }
}

int32_t BlockCopier::Damaged(const BlockCopy& copy, size_t reservation, const uint32_t* sums) const {
  for (const size_t t : by_reservation_[reservation])
    if (sums[t] != copy.sums[t]) return static_cast<int32_t>(t);
  return -1;
}

}  // namespace vkv
