#include "runner/health/nvml.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace sortie::runner::health {
namespace {

/// Looks up the first of the names that the library defines.
template <class Function>
bool resolve(void* library, Function& function, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (!function) function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Result<Nvml> Nvml::load(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* text = ::dlerror();
    return fail(ErrorCode::unsupported, text ? text : path + ": not found");
  }
  Nvml nvml;
  const bool usable = resolve(library, nvml.init, {"nvmlInit_v2"}) &&
                      resolve(library, nvml.count, {"nvmlDeviceGetCount_v2"}) &&
                      resolve(library, nvml.device, {"nvmlDeviceGetHandleByIndex_v2"}) &&
                      resolve(library, nvml.pci, {"nvmlDeviceGetPciInfo_v3"}) &&
                      resolve(library, nvml.uuid, {"nvmlDeviceGetUUID"});
  if (!usable)
    return fail(ErrorCode::unsupported,
                fmt::format("{}: no usable NVML; it is too old, or another library", path));
  resolve(library, nvml.error_text, {"nvmlErrorString"});
  resolve(library, nvml.driver_version, {"nvmlSystemGetDriverVersion"});
  resolve(library, nvml.event_set, {"nvmlEventSetCreate"});
  resolve(library, nvml.supported_events, {"nvmlDeviceGetSupportedEventTypes"});
  resolve(library, nvml.register_events, {"nvmlDeviceRegisterEvents"});
  resolve(library, nvml.wait, {"nvmlEventSetWait_v2", "nvmlEventSetWait"});
  resolve(library, nvml.fields, {"nvmlDeviceGetFieldValues"});
  resolve(library, nvml.throttle,
          {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  resolve(library, nvml.ecc, {"nvmlDeviceGetTotalEccErrors"});
  resolve(library, nvml.remapped, {"nvmlDeviceGetRemappedRows"});
  resolve(library, nvml.link, {"nvmlDeviceGetNvLinkState"});
  return nvml;
}

std::string Nvml::text(int error) const {
  const char* words = error_text ? error_text(error) : nullptr;
  return words ? words : fmt::format("NVML error {}", error);
}

Result<> check_named_library(const std::string& path) {
  if (!path.starts_with('/'))
    return fail(ErrorCode::usage, fmt::format("{}: not an absolute path", path));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::unexpected(os_error(errno, path));
  if (!S_ISREG(info.st_mode) || (info.st_uid != ::geteuid() && info.st_uid != 0) ||
      (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return fail(
        ErrorCode::usage,
        fmt::format("{}: must be a file of this user or of root that no other user may write",
                    path));
  return {};
}

}  // namespace sortie::runner::health
