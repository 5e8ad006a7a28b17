#include "launcher/control/detach.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/command_name.h"
#include "common/base/exit_code.h"
#include "common/base/json_text.h"
#include "common/base/print_stderr.h"
#include "common/base/process_status.h"
#include "launcher/console/console.h"

namespace sortie::launcher {
Result<> StartNotice::leave_terminal(const std::filesystem::path& run) {
  const std::string path = (run / "supervisor.log").string();
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Fd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!null || !log) return std::unexpected(os_error(errno, path));
  ::dup2(null.get(), 0);
  ::dup2(log.get(), 1);
  ::dup2(log.get(), 2);
  run_ = run;
  return {};
}

void StartNotice::started(const std::string& run_id) {
  const nlohmann::json line = {{"started", true}, {"run", run_id}, {"folder", run_.string()}};
  say(json_text(line) + "\n");
}

void StartNotice::failed(int exit_code, const std::string& text) {
  const nlohmann::json line = {{"started", false}, {"exit_code", exit_code}, {"text", text}};
  say(json_text(line) + "\n");
}

void StartNotice::pass_on(const std::string& line) {
  say(line);
}

void StartNotice::say(const std::string& text) {
  if (!pipe_) return;
  // Errors are ignored: the parent may be gone.
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(pipe_.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    done += static_cast<std::size_t>(count);
  }
  pipe_.reset();
}

int run_detached(const Supervise& supervise, const WatchOrder& watch, bool announce) {
  const sigset_t before = block_signals();
  const auto child = fork_apart(
      [&](Fd notice) {
        if (watch.limit > 0) become_watcher(std::move(notice), supervise, watch, before);
        become_supervisor(std::move(notice), supervise);
      },
      before);
  if (!child) {
    print_stderr("sortie: {}\n", child.error().message);
    return kExitFailed;
  }
  const Heard heard = listen_to(*child, before);
  const nlohmann::json said =
      nlohmann::json::parse(heard.line, nullptr, /*allow_exceptions=*/false);
  if (said.is_object() && said.value("started", false)) {
    const std::string id = said.value("run", "");
    if (heard.passed_on != 0) {  // its ranks were started before it handled the signal
      print_stderr("sortie: run {}: interrupted by {} while its ranks started\n", id,
                   signal_name(heard.passed_on));
      return 128 + heard.passed_on;
    }
    if (!announce) return kExitOk;
    fmt::print("{}\n", id);
    std::fflush(stdout);
    print_stderr(
        "  {0} attach {1}    its output, live; Ctrl-C leaves it running\n"
        "  {0} status {1}    its hosts, ranks and training\n"
        "  {0} stop {1}      end it\n",
        command_line({}), id);
    return kExitOk;
  }
  if (said.is_object()) {
    if (const std::string text = said.value("text", ""); !text.empty())
      print_stderr("{}\n", printable_lines(text));
    return said.value("exit_code", kExitFailed);
  }
  int status = 0;
  ::waitpid(child->pid, &status, 0);
  print_stderr(
      "sortie: the supervisor ended before its ranks had started ({}); the latest "
      "supervisor.log in the run folder may say why\n",
      ProcessStatus::from_wait_status(status).to_string());
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : kExitFailed;
}

}  // namespace sortie::launcher
