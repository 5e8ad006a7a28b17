// A fake NVML library with the functions that sortie-health calls. The file named by
// SORTIE_FAKE_NVML is its script. It is read again at each call. Lines:
//   gpus N              number of GPUs (default 2)
//   event GPU XID       an event that occurs once, in the order of the lines
//   lost GPU            every query of this GPU fails with "GPU is lost"
//   recovery GPU N, ecc GPU N, corrected GPU N, pending GPU 1, failed GPU 1
//   throttle GPU BITS, links GPU MASK
//   hang                queries of devices do not return
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runner/health/nvml.h"

namespace {

using namespace sortie::runner::health;

constexpr int kNotSupported = 3, kNotFound = 6;

struct Line {
  std::string word;
  unsigned gpu = 0;
  unsigned long long value = 0;
};

std::vector<Line> script() {
  std::vector<Line> lines;
  const char* path = std::getenv("SORTIE_FAKE_NVML");
  std::ifstream file(path ? path : "");
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    Line line;
    words >> line.word >> line.gpu >> line.value;
    lines.push_back(line);
  }
  return lines;
}

/// A handle is the index of its GPU plus one.
unsigned number_of(NvmlDevice device) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)) - 1;
}

bool has_line(const char* word, unsigned gpu) {
  for (const Line& line : script())
    if (line.word == word && line.gpu == gpu) return true;
  return false;
}

void hang_if_told() {
  while (has_line("hang", 0)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// Sets `value` to that of the last line with this word and GPU, or to `otherwise` if there is
/// none.
int value_of(const char* word, NvmlDevice device, unsigned long long otherwise,
             unsigned long long& value) {
  hang_if_told();
  const unsigned gpu = number_of(device);
  if (has_line("lost", gpu)) return kNvmlGpuIsLost;
  value = otherwise;
  for (const Line& line : script())
    if (line.word == word && line.gpu == gpu) value = line.value;
  return kNvmlSuccess;
}

std::size_t events_given = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return script().empty() ? 9 : kNvmlSuccess;  // 9: driver not loaded
}
const char* nvmlErrorString(int error) {
  return error == 9 ? "Driver Not Loaded" : error == kNvmlGpuIsLost ? "GPU is lost" : "Other";
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "999.1");
  return kNvmlSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  for (const Line& line : script())
    if (line.word == "gpus") *count = line.gpu;
  return kNvmlSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned number, NvmlDevice* device) {
  hang_if_told();
  if (has_line("lost", number)) return kNvmlGpuIsLost;
  *device = reinterpret_cast<NvmlDevice>(std::uintptr_t{number} + 1);
  return kNvmlSuccess;
}
int nvmlDeviceGetPciInfo_v3(NvmlDevice device, NvmlPci* pci) {
  unsigned long long ignored = 0;
  if (const int error = value_of("", device, 0, ignored)) return error;
  std::snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x3b + number_of(device));
  return kNvmlSuccess;
}
int nvmlDeviceGetUUID(NvmlDevice device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-0000-%u", number_of(device));
  return kNvmlSuccess;
}
int nvmlEventSetCreate(NvmlEventSet* set) {
  *set = &events_given;
  return kNvmlSuccess;
}
int nvmlDeviceGetSupportedEventTypes(NvmlDevice, unsigned long long* types) {
  *types = kNvmlEventXid;
  return kNvmlSuccess;
}
int nvmlDeviceRegisterEvents(NvmlDevice, unsigned long long types, NvmlEventSet) {
  return types == kNvmlEventXid ? kNvmlSuccess : kNotSupported;
}
int nvmlEventSetWait_v2(NvmlEventSet, NvmlEvent* event, unsigned ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  for (;;) {
    std::size_t number = 0;
    for (const Line& line : script())
      if (line.word == "event" && number++ == events_given) {
        ++events_given;
        *event = {reinterpret_cast<NvmlDevice>(std::uintptr_t{line.gpu} + 1), kNvmlEventXid,
                  line.value, 0, 0};
        return kNvmlSuccess;
      }
    if (std::chrono::steady_clock::now() >= until) return kNvmlTimeout;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}
int nvmlDeviceGetFieldValues(NvmlDevice device, int count, NvmlField* fields) {
  unsigned long long value = 0;
  if (const int error = value_of("recovery", device, 0, value)) return error;
  for (int i = 0; i < count; ++i) {
    fields[i].result = fields[i].id == kNvmlFieldRecoveryAction ? kNvmlSuccess : kNotFound;
    fields[i].type = 1;
    fields[i].value.number = static_cast<unsigned>(value);
  }
  return kNvmlSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(NvmlDevice device, unsigned long long* bits) {
  return value_of("throttle", device, 0, *bits);
}
int nvmlDeviceGetTotalEccErrors(NvmlDevice device, int type, int, unsigned long long* errors) {
  return value_of(type == 1 ? "ecc" : "corrected", device, 0, *errors);
}
int nvmlDeviceGetRemappedRows(NvmlDevice device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* pending, unsigned* failed) {
  *corrected = *uncorrected = 0;
  unsigned long long waits = 0, broken = 0;
  if (const int error = value_of("pending", device, 0, waits)) return error;
  if (const int error = value_of("failed", device, 0, broken)) return error;
  *pending = static_cast<unsigned>(waits);
  *failed = static_cast<unsigned>(broken);
  return kNvmlSuccess;
}
int nvmlDeviceGetNvLinkState(NvmlDevice device, unsigned link, int* active) {
  unsigned long long mask = 0;
  if (const int error = value_of("links", device, 0, mask)) return error;
  if (link >= 4) return kNotSupported;
  *active = static_cast<int>(mask >> link & 1);
  return kNvmlSuccess;
}

}  // extern "C"
