// sortie-runner: Sortie's process on a host. Started by the launcher, over SSH or locally, as
// `sortie-runner --stdio`: frames on stdin and stdout, diagnostics on stderr. With --announce a
// line of its own says that the frames begin, after whatever the shell's start-up files have
// printed; --xxh3 HEX is the content that this file must have. With --serve, at last, it stays for
// more than one launcher's conversation (serve/serve.h). The same binary is process 1 of a rank's
// container (container/container_init.h), and holds tunnels (tunnel/holder.h).
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/exit_code.h"
#include "common/base/fd.h"
#include "common/base/heap.h"
#include "common/base/hex.h"
#include "common/base/log.h"
#include "common/files/piece.h"
#include "runner/container/container_init.h"
#include "runner/container/inside.h"
#include "runner/runner.h"
#include "runner/serve/serve.h"
#include "runner/tunnel/holder.h"

namespace {

using namespace sortie;

/// The launcher installs a runner as "runner-<content hash>": the hash, empty for any other name.
std::string build_from_file_name() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  std::string_view name(path, length > 0 ? static_cast<std::size_t>(length) : 0);
  name.remove_prefix(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1);
  constexpr std::string_view kPrefix = "runner-";
  return name.starts_with(kPrefix) ? std::string(name.substr(kPrefix.size())) : std::string();
}

/// Installed by a launcher, and not a developer's "runner-test".
bool is_content_hash(std::string_view build) {
  return build.size() == 64 && build.find_first_not_of("0123456789abcdef") == build.npos;
}

/// A file that was damaged on its disk goes: the launcher then sends it again. `xxh3`: of the
/// content, where the launcher has said it; SHA-256 of as much takes ten times as long.
Result<> check_content(const std::string& build, const std::string& xxh3) {
  const Fd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    return std::unexpected(os_error(errno, "/proc/self/exe"));
  const auto size = static_cast<std::size_t>(info.st_size);
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (bytes == MAP_FAILED) return std::unexpected(os_error(errno, "map /proc/self/exe"));
  const bool good = xxh3.empty()
                        ? hex(files::hash_bytes({static_cast<const char*>(bytes), size})) == build
                        : fmt::format("{:016x}", XXH3_64bits(bytes, size)) == xxh3;
  ::munmap(bytes, size);
  if (good) return {};
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::read_symlink("/proc/self/exe", ignored), ignored);
  return fail(ErrorCode::data,
              "sortie-runner: its hash does not match its name: it was damaged on this disk and "
              "has been removed; the next start sends it again");
}

/// Takes a standard descriptor out of its place and leaves /dev/null there: nothing can write
/// between the frames, and no later descriptor gets number 0 or 1.
Fd take_over(int standard) {
  Fd moved(::fcntl(standard, F_DUPFD_CLOEXEC, 3));
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(null.get(), standard);
  return moved;
}

/// What else this binary does: in and around containers, and for a tunnel; nothing for the runner
/// itself.
std::optional<int> other_role(std::span<char* const> words) {
  const std::string_view role = words.size() > 1 ? words[1] : "";
  if (role == "container-init" && (words.size() == 3 || words.size() == 4))
    return runner::container::container_init(words[2], words.size() == 4 ? words[3] : "");
  if (role == "tunnel" && words.size() == 3) return runner::tunnel::hold_tunnel(words[2]);
  if (role == "missing-paths") return runner::container::missing_paths(words.subspan(2));
  return std::nullopt;
}

int main_of_runner(int argc, char** argv) {
  int known = 2;
  const auto has = [&](std::string_view option) {
    return argc > known && argv[known] == option && ++known > 0;
  };
  const bool announce = has("--announce");
  std::string xxh3;
  if (has("--xxh3") && argc > known) xxh3 = argv[known++];
  const bool serve = has("--serve");
  if (argc != known || std::string_view(argv[1]) != "--stdio") {
    std::fputs(
        "usage: sortie-runner --stdio [--announce] [--xxh3 HEX] [--serve] (started by the "
        "launcher, "
        "not by hand)\n",
        stderr);
    return kExitUsage;
  }
  const std::string build = build_from_file_name();
  if (is_content_hash(build))
    if (const Result<> good = check_content(build, xxh3); !good) {
      std::fprintf(stderr, "%s\n", good.error().message.c_str());
      return kExitFailed;
    }
  constexpr std::string_view kAnnouncement = "\nSORTIE HAVE\n";
  if (announce && ::write(1, kAnnouncement.data(), kAnnouncement.size()) < 0)
    return kExitFailed;  // nobody listens
  keep_freed_pieces();
  const runner::ProcessDefaults defaults = runner::become_runner();
  log::init("sortie-runner", log::Level::info);
  Fd in = take_over(0);
  Fd out = take_over(1);
  const runner::Converse converse = [&](Fd from, Fd to) {
    return runner::Runner(defaults, build).run(std::move(from), std::move(to));
  };
  if (serve) return runner::serve_conversations(std::move(in), std::move(out), converse);
  return converse(std::move(in), std::move(out));
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char* const> words(argv, static_cast<std::size_t>(argc));
  if (const std::optional<int> code = other_role(words)) return *code;
  return main_of_runner(argc, argv);
}
