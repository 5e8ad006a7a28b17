#include "runner/pmix/libpmix.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <vector>

namespace sortie::runner {
namespace {

template <class Function>
bool resolve(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function && missing.empty()) missing = name;
  return function != nullptr;
}

}  // namespace

Result<Libpmix> Libpmix::load() {
  std::vector<std::string> names = {"libpmix.so.2", "libpmix.so"};
  if (const char* override = std::getenv("SORTIE_LIBPMIX")) names = {override};
  void* library = nullptr;
  std::string reason;
  Libpmix pmix;
  for (const std::string& name : names) {
    // RTLD_GLOBAL: the library's plugins resolve its symbols through the process.
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library) {
      pmix.path = name;
      break;
    }
    if (reason.empty())
      if (const char* text = dlerror()) reason = text;
  }
  if (!library)
    return fail(
        ErrorCode::unsupported,
        fmt::format(
            "libpmix not found: {}; install libpmix2 (Debian, Ubuntu) or pmix (Fedora, RHEL)",
            reason));
  std::string missing;
  resolve(library, "PMIx_Get_version", pmix.get_version, missing);
  resolve(library, "PMIx_Error_string", pmix.error_string, missing);
  resolve(library, "PMIx_server_init", pmix.server_init, missing);
  resolve(library, "PMIx_server_finalize", pmix.server_finalize, missing);
  resolve(library, "PMIx_Register_event_handler", pmix.register_event_handler, missing);
  resolve(library, "PMIx_server_register_nspace", pmix.register_nspace, missing);
  resolve(library, "PMIx_server_register_client", pmix.register_client, missing);
  resolve(library, "PMIx_server_setup_fork", pmix.setup_fork, missing);
  resolve(library, "PMIx_server_dmodex_request", pmix.dmodex_request, missing);
  resolve(library, "PMIx_Get_nb", pmix.get_nb, missing);
  if (!missing.empty())
    return fail(ErrorCode::unsupported,
                fmt::format("{} is no usable libpmix: it has no {}; install libpmix 3 or newer",
                            pmix.path, missing));
  if (pmix.major() < 3)
    return fail(ErrorCode::unsupported,
                fmt::format("{} is too old ({}); install libpmix 3 or newer", pmix.path,
                            pmix.get_version()));
  return pmix;
}

std::string Libpmix::version() const {
  std::string text = get_version();
  const std::size_t begin = text.find_first_of("0123456789");
  if (begin == std::string::npos) return text;
  const std::size_t end = text.find_first_not_of("0123456789.", begin);
  return text.substr(begin, end == std::string::npos ? end : end - begin);
}

int Libpmix::major() const {
  return std::atoi(version().c_str());
}

Error Libpmix::error(std::string_view what, pmix_status_t status) const {
  const char* text = error_string(status);
  return {ErrorCode::unsupported, fmt::format("{}: {} ({})", what, text ? text : "?", status)};
}

}  // namespace sortie::runner
