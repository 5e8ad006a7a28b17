#include "runner/pmix/probe.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdio>
#include <string>

#include "common/base/exit_code.h"
#include "runner/pmix/libpmix.h"

namespace sortie::runner {
namespace {

/// Type of MPI_Get_library_version, which may be called before MPI_Init and is the same in all
/// implementations.
using LibraryVersion = int (*)(char* version, int* length);
constexpr std::size_t kMaxLibraryVersion = 8192;  // MPICH's; Open MPI's is shorter

std::string first_words(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace

int probe_libraries(const char* libmpi) {
  if (const Result<Libpmix> pmix = Libpmix::load())
    fmt::print("pmix {}\n", pmix->version());
  else
    fmt::print("pmix-error {}\n", pmix.error().message);
  std::fflush(stdout);
  void* library = dlopen(libmpi, RTLD_LAZY | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    fmt::print("mpi-error {}\n", why ? why : "it does not load");
    return kExitOk;
  }
  char version[kMaxLibraryVersion + 1] = "";
  int length = 0;
  const auto get = reinterpret_cast<LibraryVersion>(dlsym(library, "MPI_Get_library_version"));
  if (get && get(version, &length) == 0)
    fmt::print("mpi {}\n", first_words(version));
  else
    fmt::print("mpi-error {} has no MPI_Get_library_version\n", libmpi);
  return kExitOk;
}

}  // namespace sortie::runner
