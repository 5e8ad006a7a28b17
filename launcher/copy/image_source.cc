#include "launcher/copy/image_source.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "common/base/split.h"

namespace sortie::launcher {
namespace {

bool in_path(std::string_view name) {
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split_filled(path ? path : "", ':'))
    if (::access(fmt::format("{}/{}", folder, name).c_str(), X_OK) == 0) return true;
  return false;
}

}  // namespace

Result<> ScratchFolder::make() {
  const char* base = std::getenv("TMPDIR");
  std::string path = fmt::format("{}/sortie-image-XXXXXX", base && *base ? base : "/var/tmp");
  if (!::mkdtemp(path.data())) return std::unexpected(os_error(errno, path));
  path_ = path;
  return {};
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<container::Engine> client_here(const std::string& engine) {
  for (const container::Engine client : container::clients_of(engine))
    if (in_path(container::engine_name(client))) return client;
  return fail(ErrorCode::unsupported,
              fmt::format("{}: is not on this machine, so it has no image to push; install it, or "
                          "name another one with --from",
                          engine));
}

}  // namespace sortie::launcher
