// Rules: the rules for callers of the simulated device, as texts. A misuse names the broken rule.
//
// The rules about ranges and handles are CUDA's; where CUDA leaves a breach undefined or tolerates it, it is an error
// here.
#ifndef VKV_MOCK_RULES_H_
#define VKV_MOCK_RULES_H_

namespace vkv::mock {

using Rule = const char*;  // a static string; nullptr: no rule is broken

namespace rules {

inline constexpr char kInitialized[] = "cuInit must be called first";
inline constexpr char kCurrentContext[] = "a context must be current on this thread";
inline constexpr char kLiveContext[] = "the context must be retained";
inline constexpr char kNoContextToPop[] = "only a pushed context can be popped";
inline constexpr char kRetainedContext[] = "the primary context can be released as often as it was retained";
inline constexpr char kKnownDevice[] = "the device must exist";
inline constexpr char kFlags[] = "flags must be zero";
inline constexpr char kOffset[] = "the offset into a page must be zero";
inline constexpr char kOutput[] = "the place for the result must not be null";

inline constexpr char kAlignment[] = "the alignment must be zero or a power of two";
inline constexpr char kHostPages[] = "a reservation must be a multiple of the host's page, and not empty";
inline constexpr char kGranularity[] = "address and bytes must be multiples of the granularity, and not empty";
inline constexpr char kProperties[] = "a page must be pinned memory of this device, with no handle type";
inline constexpr char kAccess[] = "access must be none, read or read-write, for this device";

inline constexpr char kOneReservation[] = "the range must lie in one live reservation";
inline constexpr char kExactReservation[] = "address and bytes must be those of a live reservation";
inline constexpr char kEmptyReservation[] = "everything in the reservation must be unmapped first";
inline constexpr char kUnmapped[] = "nothing in the range may be mapped already";
inline constexpr char kNoHole[] = "every part of the range must be mapped";
inline constexpr char kWholeMappings[] = "the range must cover mappings as a whole";
inline constexpr char kMapped[] = "the address must be mapped";

inline constexpr char kLivePage[] = "the handle must be that of a live page";
inline constexpr char kWholePage[] = "a page must be mapped as a whole";

inline constexpr char kReadable[] = "every byte that is read must be mapped and readable";
inline constexpr char kWritable[] = "every byte that is written must be mapped and writable";
inline constexpr char kHostPointer[] = "the host pointer must not be null";
inline constexpr char kRegistrable[] = "registered memory must be whole pages of the CPU's memory, and not empty";
inline constexpr char kRegisteredOnce[] = "memory must not be registered twice";
inline constexpr char kRegistered[] = "the address must be the start of registered memory";
inline constexpr char kRegisteredForDevice[] =
    "the address must be the start of memory that was registered for kernels";
inline constexpr char kRegistrationInUse[] = "memory that a queued copy or kernel uses must not be unregistered";
inline constexpr char kOneRegistration[] =
    "memory of the CPU that a copy uses must lie in one registered range, or in none at all";
inline constexpr char kOverlap[] = "the two ranges of a copy must not share memory, at the same or at another address";
inline constexpr char kAlias[] = "one kernel must not write a page at one address and use it at another";
inline constexpr char kBusy[] = "memory that queued work uses must not be unmapped";
inline constexpr char kKernelAccess[] = "a kernel may use only memory that is mapped and accessible";

inline constexpr char kImage[] = "a module must be PTX or a fatbin";
inline constexpr char kLiveModule[] = "the module must be loaded";
inline constexpr char kLiveKernel[] = "the kernel must be one of a loaded module";
inline constexpr char kKernelParameters[] = "a kernel must get its parameters, and no others";
inline constexpr char kLaunchSize[] =
    "grid, block and shared memory must be possible, and what the kernel's parameters need";

inline constexpr char kCapturable[] = "only a stream of its own that is not captured yet can be captured";
inline constexpr char kCaptured[] = "the stream must be captured";
inline constexpr char kNotWhileCapturing[] = "nothing may wait for a stream that is being captured";
inline constexpr char kDefaultStream[] =
    "the default stream must not be used while a stream that is ordered with it is captured";
inline constexpr char kLiveGraph[] = "the graph must be live";

inline constexpr char kLiveStream[] = "the stream must be live";
inline constexpr char kLiveEvent[] = "the event must be live";

}  // namespace rules
}  // namespace vkv::mock

#endif  // VKV_MOCK_RULES_H_
