// libsortie-gpu-timeline.so: records when each kernel, copy and fill of a program ran on the GPU.
// The driver loads it if CUDA_INJECTION64_PATH names it. When the program exits, it writes a line
// per activity to the file of SORTIE_GPU_TIMELINE: begin and duration in ns, stream, name.
// Activities of CUDA graphs are recorded one by one. CUPTI delivers records in buffers, when these
// are full, which costs the program next to nothing.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Activity {
  std::uint64_t begin, end;
  std::uint32_t stream;
  std::string name;
};

struct Timeline {
  std::mutex mutex;
  std::vector<Activity> activities;
  std::unordered_map<std::string, std::string> demangled;
};
// Never destroyed: CUPTI's threads may return buffers until the process ends.
Timeline& timeline() {
  static auto* const all = new Timeline;
  return *all;
}

void check(CUptiResult status, const char* what) {
  if (status == CUPTI_SUCCESS) return;
  const char* text = "";
  (void)cuptiGetResultString(status, &text);
  std::fprintf(stderr, "gpu_timeline: %s: %s\n", what, text);
  std::_Exit(1);
}

const std::string& readable(Timeline& all, const char* name) {
  const auto [at, is_new] = all.demangled.try_emplace(name, name);
  if (is_new) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text(
        abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
    if (status == 0) at->second = text.get();
  }
  return at->second;
}

constexpr std::size_t kBufferBytes = 8 << 20, kAlignment = 8;

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

void add(Timeline& all, const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      all.activities.push_back(
          {kernel.start, kernel.end, kernel.streamId, readable(all, kernel.name)});
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      all.activities.push_back({copy.start, copy.end, copy.streamId, "copy"});
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      all.activities.push_back({fill.start, fill.end, fill.streamId, "fill"});
      return;
    }
    default:
      return;
  }
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t valid) {
  Timeline& all = timeline();
  const std::lock_guard lock(all.mutex);
  CUpti_Activity* record = nullptr;
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
    add(all, record);
  std::free(buffer);
}

void write_timeline() {
  check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "waiting for activities");
  Timeline& all = timeline();
  const std::lock_guard lock(all.mutex);
  if (all.activities.empty()) return;  // a parent that only starts other programs
  std::ranges::sort(all.activities, {}, &Activity::begin);
  const char* path = std::getenv("SORTIE_GPU_TIMELINE");
  std::FILE* file = std::fopen(path, "w");
  bool good = file != nullptr;
  for (const Activity& a : all.activities)
    good = good && std::fprintf(file, "%llu\t%llu\t%u\t%s\n",
                                static_cast<unsigned long long>(a.begin - all.activities[0].begin),
                                static_cast<unsigned long long>(a.end - a.begin), a.stream,
                                a.name.c_str()) > 0;
  if (file != nullptr) good = std::fclose(file) == 0 && good;
  if (!good) std::fprintf(stderr, "gpu_timeline: %s could not be written\n", path);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  if (std::getenv("SORTIE_GPU_TIMELINE") == nullptr) {
    std::fprintf(stderr, "gpu_timeline: SORTIE_GPU_TIMELINE must name the file to write\n");
    return 0;
  }
  check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "the start of CUPTI");
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    check(cuptiActivityEnable(kind), "a kind of activities");
  std::atexit(write_timeline);
  return 1;
}
