// A test program for ranks: rank-helper ACTION [ARGS]. Each action is one way in which a real
// program runs or ends; main() lists them.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

extern char** environ;

namespace {

void say(const std::string& text) {
  if (::write(1, text.data(), text.size()) < 0) std::exit(99);
}

/// Writes argv and environment byte for byte, each string followed by a zero byte.
void show(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) say(std::string("arg ") + argv[i] + '\0');
  for (char** entry = environ; *entry; ++entry) say(std::string("env ") + *entry + '\0');
}

/// Writes the state of the process that a rank inherits: descriptors, working folder, signals,
/// umask, process group.
void show_state() {
  std::string fds;
  DIR* dir = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(dir))
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != ::dirfd(dir))
      fds += std::string(entry->d_name) + " ";
  ::closedir(dir);
  char target[256] = {}, folder[256] = {};
  if (::readlink("/proc/self/fd/0", target, sizeof target - 1) < 0) std::exit(98);
  if (!::getcwd(folder, sizeof folder)) std::exit(98);
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  int blocked = 0, handled = 0;
  for (int number = 1; number <= 64; ++number) {
    struct sigaction action {};
    blocked += ::sigismember(&mask, number) == 1;
    handled += ::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_DFL;
  }
  const mode_t umask_now = ::umask(0);
  char oom[16] = {};
  const int oom_fd = ::open("/proc/self/oom_score_adj", O_RDONLY);
  if (::read(oom_fd, oom, sizeof oom - 1) < 0) std::exit(98);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  std::printf("fds %s\nstdin %s\ncwd %s\nblocked %d handled %d\numask %03o\nleader %d %d\noom %s",
              fds.c_str(), target, folder, blocked, handled, static_cast<unsigned>(umask_now),
              ::getsid(0) == ::getpid(), ::getpgrp() == ::getpid(), oom);
  std::printf("nofile %llu\n", static_cast<unsigned long long>(files.rlim_cur));
}

void sleep_long() {
  for (int i = 0; i < 60; ++i) ::sleep(1);  // bounded: a failed test leaves none for long
}

/// Starts `count` daemons: new session, double fork, TERM and HUP ignored.
void daemons(int count, bool stay) {
  for (int i = 0; i < count; ++i) {
    if (::fork() != 0) continue;
    ::setsid();
    ::signal(SIGTERM, SIG_IGN);
    ::signal(SIGHUP, SIG_IGN);
    if (::fork() != 0) ::_exit(0);
    ::setsid();
    sleep_long();
    ::_exit(0);
  }
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
  say("daemons up\n");
  if (stay) sleep_long();
}

/// Runs `width` chains of processes, for at most `seconds`. In each chain a process starts a new
/// session, forks the next one and exits, so any PID read is already out of date.
void fork_storm(int width, int seconds) {
  const time_t end = ::time(nullptr) + seconds;
  say("storm\n");
  for (int i = 0; i < width; ++i) {
    if (::fork() != 0) continue;
    ::signal(SIGTERM, SIG_IGN);
    while (::time(nullptr) < end) {
      ::setsid();
      const pid_t pid = ::fork();
      if (pid > 0) ::_exit(0);
      if (pid < 0) ::usleep(1000);
    }
    ::_exit(0);
  }
  sleep_long();
}

/// Writes `bytes` of a pattern in which every line contains its offset, so that order and integrity
/// can be checked.
void pattern(std::size_t bytes) {
  std::string block;
  for (std::size_t at = 0; at < bytes; at += 16) {
    char line[32];
    std::snprintf(line, sizeof line, "%015zx\n", at);
    block.append(line, 16);
    if (block.size() >= (1u << 16) || at + 16 >= bytes) {
      std::string_view left = block;
      while (!left.empty()) {
        const ssize_t count = ::write(1, left.data(), left.size());
        if (count <= 0) std::exit(97);
        left.remove_prefix(static_cast<std::size_t>(count));
      }
      block.clear();
    }
  }
}

void binary() {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  say(all);
  if (::write(2, all.data(), all.size()) < 0) std::exit(99);
}

int connect_socket() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const char* path = std::getenv("SORTIE_SOCKET");
  if (!path) std::exit(96);
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::exit(95);
  return fd;
}

void send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count <= 0) std::exit(94);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void events() {
  const int fd = connect_socket();
  send_all(fd, "{\"step\":1,\"loss\":2.5}\n");
  send_all(fd, "{\"big\":\"" + std::string(70000, 'x') + "\"}\n");
  send_all(fd, "{\"bad\":\"\xff\xfe\"}\n");
  send_all(fd, "no object\n");
  send_all(fd, "{\"step\":");
  send_all(fd, "2}\n{\"step\":3}");  // the last line has no newline
}

/// Sends a question to the launcher and writes the answer to stdout.
void ask() {
  const int fd = connect_socket();
  send_all(fd, "{\"type\":\"listen\"}\n{\"type\":\"ask\",\"number\":1}\n");
  for (char byte = 0; byte != '\n' && ::read(fd, &byte, 1) == 1;) say({&byte, 1});
}

/// Writes each argument as a line to SORTIE_SOCKET, then keeps running. With ANSWERS_QUIT set,
/// SIGQUIT makes it write stacks to a file, as a program does that does not mark their end with a
/// line.
void tell(int argc, char** argv) {
  struct sigaction action {};
  action.sa_handler = [](int) {
    static const std::string path =
        std::string(std::getenv("SORTIE_SOCKET")) + ".stacks-" + std::to_string(::getpid());
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    constexpr std::string_view kText = "File \"helper.py\", line 7 in wait_for_godot\n";
    if (::write(file, kText.data(), kText.size()) < 0) ::_exit(89);
    ::close(file);
  };
  if (std::getenv("ANSWERS_QUIT")) ::sigaction(SIGQUIT, &action, nullptr);
  const int fd = connect_socket();
  for (int i = 2; i < argc; ++i) send_all(fd, std::string(argv[i]) + "\n");
  say("told\n");
  sleep_long();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string action = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? std::atoi(argv[2]) : 0;
  if (action == "show") {
    show(argc, argv);
  } else if (action == "state") {
    show_state();
  } else if (action == "exit") {
    return number;
  } else if (action == "raise") {
    rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::raise(number);
  } else if (action == "sleep") {
    say("up\n");
    sleep_long();
  } else if (action == "ignore-term") {
    ::signal(SIGTERM, SIG_IGN);
    say("up\n");
    sleep_long();
  } else if (action == "exit-on-term") {
    ::signal(SIGTERM, [](int) { ::_exit(42); });
    say("up\n");
    sleep_long();
  } else if (action == "daemons") {
    daemons(number, true);
  } else if (action == "daemons-exit") {
    daemons(number, false);
  } else if (action == "storm") {
    fork_storm(number, argc > 3 ? std::atoi(argv[3]) : 10);
  } else if (action == "pattern") {
    pattern(static_cast<std::size_t>(std::atoll(argv[2])));
  } else if (action == "chatty-or-quiet") {  // rank 0 writes forever, the others write one line
    if (std::getenv("RANK") && std::string(std::getenv("RANK")) == "0") {
      pattern(std::size_t{1} << 40);
    }
    ::usleep(300000);
    say("quiet line\n");
    sleep_long();
  } else if (action == "binary") {
    binary();
  } else if (action == "events") {
    events();
  } else if (action == "ask") {
    ask();
  } else if (action == "tell") {
    tell(argc, argv);
  } else if (action == "eat") {  // allocates that many MiB
    const std::size_t bytes = static_cast<std::size_t>(number) << 20;
    char* memory = static_cast<char*>(std::malloc(bytes));
    if (!memory) return 93;
    for (std::size_t at = 0; at < bytes; at += 4096) memory[at] = 1;
    say("eaten " + std::to_string(memory[bytes / 2]) + "\n");
    sleep_long();
  } else if (action == "by-rank") {  // exit code = 10 + rank
    return 10 + std::atoi(std::getenv("RANK"));
  } else {
    return 90;
  }
  return 0;
}
