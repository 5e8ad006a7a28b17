#include "launcher/shell/prompt.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <utility>

#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "common/base/fd.h"
#include "common/base/process_status.h"
#include "launcher/shell/shell_history.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using ReadKind = LineEditor::Read::Kind;

struct Prompt::Shared {
  explicit Shared(const asio::any_io_executor& e)
      : executor(e), answered(e, asio::steady_timer::time_point::max()) {}

  struct Order {
    bool local = false;
    std::string text;
  };

  const asio::any_io_executor executor;
  asio::steady_timer answered;  // used on the I/O thread only, like the next two
  std::optional<Answer> answer;
  std::optional<int> status;

  std::mutex mutex;
  std::condition_variable ordered;
  std::optional<Order> order;
  std::string to_show;
  bool stop = false;
  std::atomic<pid_t> local = 0;  // pid of a local command
  Fd wake_read, wake_write;
};

namespace {

/// Reads lines from a pipe or a file.
class PlainReader {
 public:
  explicit PlainReader(int wake) : wake_(wake) {}

  Prompt::Answer read() {
    for (;;) {
      if (const std::size_t end = held_.find('\n'); end != held_.npos) {
        Prompt::Answer line{ReadKind::line, held_.substr(0, end)};
        held_.erase(0, end + 1);
        return line;
      }
      pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {wake_, POLLIN, 0}};
      if (::poll(ready, 2, -1) < 0) continue;
      char what = 0;
      if (ready[1].revents != 0) {
        if (::read(wake_, &what, 1) == 1 && what == LineEditor::kInterrupt)
          return {ReadKind::interrupted, ""};
        if (what == LineEditor::kEnd) return {ReadKind::end, ""};
        continue;
      }
      char buffer[4096];
      const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count > 0) {
        held_.append(buffer, static_cast<std::size_t>(count));
      } else {
        if (held_.empty()) return {ReadKind::end, ""};
        return {ReadKind::line, std::exchange(held_, "")};  // last line without a newline
      }
    }
  }

 private:
  const int wake_;
  std::string held_;
};

/// Waits until the child has ended, and keeps it a zombie. A stopped one goes on: this shell has no
/// job control, and the user could not continue it.
void wait_for_end(pid_t pid) {
  const auto id = static_cast<id_t>(pid);
  for (;;) {
    siginfo_t state{}, taken{};
    if (::waitid(P_PID, id, &state, WEXITED | WSTOPPED | WNOWAIT) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (state.si_code != CLD_STOPPED) return;
    (void)::waitid(P_PID, id, &taken, WSTOPPED | WNOHANG);  // or it would be reported again
    // Ctrl-Z stops all processes of the command. They are in the group of this process. One that
    // needs the terminal, which another group has, would stop again at once (SIGTTIN, SIGTTOU).
    if (state.si_status == SIGTSTP || state.si_status == SIGSTOP) ::kill(0, SIGCONT);
  }
}

/// Runs a local command: in the foreground of the terminal like any shell command; without a
/// terminal with stdin from /dev/null, because stdin is the script.
int run_command_here(const std::string& command, bool terminal, std::atomic<pid_t>& running) {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_init(&files);
  if (!terminal) ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  for (const int number : {SIGPIPE, SIGTTOU, SIGTTIN}) ::sigaddset(&defaults, number);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  std::string shell = "sh", option = "-c", text = command;
  char* argv[] = {shell.data(), option.data(), text.data(), nullptr};
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, "/bin/sh", &files, &attributes, argv, environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0) return kExitNotRunnable;
  running = pid;
  // Keep it a zombie, so that its pid is not reused, until end() can no longer signal it.
  wait_for_end(pid);
  running = 0;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return ProcessStatus::from_wait_status(status).shell_code();
}

}  // namespace

Prompt::Prompt(asio::any_io_executor executor, Options options)
    : shared_(std::make_shared<Shared>(executor)), terminal_(options.terminal) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
    shared_->wake_read.reset(ends[0]);
    shared_->wake_write.reset(ends[1]);
  }
  thread_ =
      std::thread([shared = shared_, options = std::move(options)] { work(shared, options); });
}

Prompt::~Prompt() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->ordered.notify_all();
  end();
  thread_.join();
}

void Prompt::wake(char what) {
  if (!asking_) return;
  while (::write(shared_->wake_write.get(), &what, 1) < 0 && errno == EINTR) {
  }
}

void Prompt::end() {
  wake(LineEditor::kEnd);
  if (const pid_t pid = shared_->local; pid > 0) {
    ::kill(pid, SIGTERM);
    ::kill(pid, SIGCONT);  // a stopped process does not end
  }
}

void Prompt::show(const std::string& text) {
  if (!asking_ || !terminal_) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->to_show += text;
  }
  wake(LineEditor::kShow);
}

void Prompt::work(const std::shared_ptr<Shared>& shared, const Options& options) {
  std::optional<LineEditor> editor;
  PlainReader plain(shared->wake_read.get());
  if (options.terminal) {
    editor.emplace(
        shared->wake_read.get(), [&options] { return options.words; },
        [&shared] {
          const std::lock_guard lock(shared->mutex);
          return std::exchange(shared->to_show, "");
        });
    for (const std::string& line : options.before) editor->remember(line);
  }
  for (;;) {
    Shared::Order order;
    {
      std::unique_lock lock(shared->mutex);
      shared->ordered.wait(lock, [&shared] { return shared->stop || shared->order; });
      if (shared->stop) return;
      order = *std::exchange(shared->order, std::nullopt);
    }
    if (order.local) {
      const int status = run_command_here(order.text, options.terminal, shared->local);
      asio::post(shared->executor, [shared, status] {
        shared->status = status;
        shared->answered.cancel();
      });
      continue;
    }
    Answer answer = editor ? editor->read(order.text) : plain.read();
    // As in shells, a line that begins with a space is not kept.
    if (editor && answer.kind == ReadKind::line && !answer.text.empty() &&
        answer.text.front() != ' ') {
      editor->remember(answer.text);
      // If the disk is full the line is only in the history of this prompt.
      if (!options.history.empty()) (void)append_history(options.history, answer.text);
    }
    asio::post(shared->executor, [shared, answer = std::move(answer)] {
      shared->answer = answer;
      shared->answered.cancel();
    });
  }
}

asio::awaitable<Prompt::Answer> Prompt::ask(std::string text) {
  {
    // Discard bytes that were meant for an earlier ask().
    char old[64];
    while (::read(shared_->wake_read.get(), old, sizeof old) > 0) {
    }
    const std::lock_guard lock(shared_->mutex);
    shared_->order = Shared::Order{false, std::move(text)};
  }
  asking_ = true;
  shared_->ordered.notify_all();
  while (!shared_->answer) co_await shared_->answered.async_wait(kToken);
  asking_ = false;
  co_return *std::exchange(shared_->answer, std::nullopt);
}

asio::awaitable<int> Prompt::run_here(std::string command) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->order = Shared::Order{true, std::move(command)};
  }
  shared_->ordered.notify_all();
  while (!shared_->status) co_await shared_->answered.async_wait(kToken);
  co_return *std::exchange(shared_->status, std::nullopt);
}

}  // namespace sortie::launcher
