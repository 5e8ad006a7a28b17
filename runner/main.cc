// sortie-runner: Sortie's process on a host. The launcher starts it, over SSH or locally, as
// `sortie-runner --stdio`, with frames on stdin and stdout and diagnostics on stderr. With
// --announce it prints a separate line before the first frame, after whatever the shell's start-up
// files print. --xxh3 HEX is the hash of the content that this file must have. With --serve it
// stays for more than one conversation (serve/serve.h). The same binary is process 1 of a rank's
// container (container/container_init.h), and holds tunnels (tunnel/holder.h).
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/exit_code.h"
#include "common/base/fd.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "runner/container/container_init.h"
#include "runner/container/inside.h"
#include "runner/content.h"
#include "runner/process/prepared_keeper.h"
#include "runner/process/rehearse.h"
#include "runner/runner.h"
#include "runner/serve/serve.h"
#include "runner/tunnel/holder.h"

namespace {

using namespace sortie;

/// Moves a standard descriptor to a higher number and replaces it with /dev/null: nothing can write
/// between the frames, and no later descriptor gets number 0 or 1.
Fd take_over(int standard) {
  Fd moved(::fcntl(standard, F_DUPFD_CLOEXEC, 3));
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(null.get(), standard);
  return moved;
}

/// Runs the other roles of this binary: in and around containers, and for a tunnel. Returns nullopt
/// for the runner itself.
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
  const std::string build = runner::installed_hash();
  if (const Result<> good = runner::check_content(build, xxh3); !good) {
    std::fprintf(stderr, "%s\n", good.error().message.c_str());
    return kExitFailed;
  }
  constexpr std::string_view kAnnouncement = "\nSORTIE HAVE\n";
  if (announce && ::write(1, kAnnouncement.data(), kAnnouncement.size()) < 0)
    return kExitFailed;  // the reader is gone
  keep_freed_pieces();
  const runner::ProcessDefaults defaults = runner::become_runner();
  log::init("sortie-runner", log::Level::info);
  Fd in = take_over(0);
  Fd out = take_over(1);
  std::optional<runner::Runner> conversation;
  const auto prepare = [&] {
    runner::PreparedKeeper keeper = runner::prepare_keeper(defaults);
    conversation.emplace(defaults, build, std::move(keeper));
    runner::rehearse(runner::Rehearsed::code_and_data);  // forks make pages copy-on-write
  };
  const auto converse = [&](Fd from, Fd to) {
    if (!conversation) conversation.emplace(defaults, build);
    return conversation->run(std::move(from), std::move(to));
  };
  if (serve) return runner::serve_conversations(std::move(in), std::move(out), {prepare, converse});
  return converse(std::move(in), std::move(out));
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char* const> words(argv, static_cast<std::size_t>(argc));
  if (const std::optional<int> code = other_role(words)) return *code;
  return main_of_runner(argc, argv);
}
