#include "tests/runner/pmix/emulated_hosts.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>

#include "common/wire/codec.h"

namespace fs = std::filesystem;

namespace sortie::test {
namespace {

/// For the forked child: prints an error and exits.
[[noreturn]] void die(const char* what) {
  fmt::print(stderr, "emulated host: {}: errno {}\n", what, errno);
  std::fflush(stderr);
  _exit(99);
}

void write_file(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) die(path);
  close(fd);
}

/// Gives this process a new hostname and a new /dev/shm, and a user namespace if it does not run as
/// root.
void enter_new_host(const std::string& name) {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  const int user = uid == 0 ? 0 : CLONE_NEWUSER;
  if (unshare(user | CLONE_NEWUTS | CLONE_NEWNS) != 0)
    die("unshare (run as root, or allow user namespaces)");
  if (user) {
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", fmt::format("{} {} 1", uid, uid));
    write_file("/proc/self/gid_map", fmt::format("{} {} 1", gid, gid));
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) die("mount / private");
  if (mount("shm", "/dev/shm", "tmpfs", 0, "mode=1777") != 0) die("mount /dev/shm");
  if (sethostname(name.data(), name.size()) != 0) die("sethostname");
}

void enter_host_of(pid_t holder) {
  // A thread of ThreadSanitizer shares root and working folder with this one, and setns() into a
  // mount namespace fails then.
  if (unshare(CLONE_FS) != 0) die("unshare");
  for (const char* kind : {"user", "uts", "mnt"}) {
    if (geteuid() == 0 && kind == std::string_view("user")) continue;
    const std::string path = fmt::format("/proc/{}/ns/{}", holder, kind);
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, 0) != 0) die(path.c_str());
    close(fd);
  }
}

}  // namespace

Child::~Child() {
  if (pid_ <= 0 || status_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::optional<ProcessStatus> Child::poll() {
  int wait_status = 0;
  if (!status_ && pid_ > 0 && waitpid(pid_, &wait_status, WNOHANG) == pid_)
    status_ = ProcessStatus::from_wait_status(wait_status);
  return status_;
}

std::optional<ProcessStatus> Child::wait(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!poll() && Clock::now() < deadline) usleep(2000);
  return status_;
}

std::string Rank::text() const {
  std::ifstream file(output);
  return {std::istreambuf_iterator<char>(file), {}};
}

EmulatedHosts::EmulatedHosts(std::vector<std::vector<std::uint32_t>> ranks) {
  static int number = 0;
  folder_ = fs::temp_directory_path() / fmt::format("sortie-pmix-test-{}-{}", getpid(), ++number);
  fs::create_directory(folder_);
  std::vector<std::string> names;
  std::vector<std::string> lists;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    names.push_back(fmt::format("emu{}", i));
    lists.push_back(fmt::format("{}", fmt::join(ranks[i], ",")));
    world_size_ += static_cast<std::uint32_t>(ranks[i].size());
  }
  host_of_.resize(world_size_);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Host host;
    const fs::path tmp = folder_ / names[i];
    fs::create_directory(tmp);
    fs::permissions(tmp, fs::perms::owner_all);
    host.setup = {fmt::format("test-{}-{}", getpid(), number),
                  names[i],
                  names,
                  lists,
                  world_size_,
                  ranks[i],
                  tmp.string()};
    for (std::uint32_t rank : ranks[i]) host_of_[rank] = i;
    int ready[2];
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      enter_new_host(names[i]);
      if (write(ready[1], "x", 1) != 1) die("pipe");
      while (true) pause();
    }
    host.holder = Child(pid);
    host.namespaces = pid;
    close(ready[1]);
    char byte = 0;
    REQUIRE_MESSAGE(read(ready[0], &byte, 1) == 1, "an emulated host could not be made");
    close(ready[0]);
    hosts_.push_back(std::move(host));
  }
}

EmulatedHosts::~EmulatedHosts() {
  ranks_.clear();  // kills ranks that still run
  hang_up();
  for (Host& host : hosts_) host.server.wait(std::chrono::seconds(3));
  hosts_.clear();
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

pid_t EmulatedHosts::spawn_on(std::size_t host, const std::vector<std::string>& argv,
                              const std::vector<std::string>& env, int in, int out, int err) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(99);
  enter_host_of(hosts_[host].namespaces);
  for (const std::string& variable : env) putenv(strdup(variable.c_str()));
  dup2(in, 0);
  dup2(out, 1);
  dup2(err, 2);
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(strdup(argument.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  die(arguments[0]);
}

void EmulatedHosts::share_hosts_of(const EmulatedHosts& other) {
  REQUIRE(other.count() == count());
  for (std::size_t i = 0; i < count(); ++i) hosts_[i].namespaces = other.hosts_[i].namespaces;
}

std::optional<std::string> EmulatedHosts::start_servers(
    const std::vector<std::pair<std::string, std::string>>& env) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : env) variables.push_back(name + "=" + value);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    const Fd theirs(pair[1]);
    host.stream = Fd(pair[0]);
    host.decoder = std::make_unique<wire::FrameDecoder>();
    host.server =
        Child(spawn_on(i, {SORTIE_PMIX_BINARY}, variables, theirs.get(), theirs.get(), 2));
    send(i, host.setup);
  }
  relay_until(
      [&] {
        return std::ranges::all_of(
            hosts_, [](Host& host) { return host.ready || host.error || host.server.poll(); });
      },
      std::chrono::seconds(30));
  for (Host& host : hosts_) {
    if (host.error) return host.error->code + ": " + host.error->message;
    if (!host.ready) return "no answer from the server";
  }
  return std::nullopt;
}

void EmulatedHosts::start_ranks(const std::vector<std::string>& argv,
                                const std::vector<std::pair<std::string, std::string>>& env) {
  ranks_.clear();
  for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
    const std::size_t i = host_of_[rank];
    const Host& host = hosts_[i];
    std::vector<std::string> variables = {
        fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", world_size_),
        fmt::format("LOCAL_WORLD_SIZE={}", host.setup.local_ranks.size()),
        "OMPI_MCA_mpi_yield_when_idle=1"};
    bool mine = true;
    for (const std::string& line : host.ready->env) {
      if (line.starts_with("#rank "))
        mine = line == fmt::format("#rank {}", rank);
      else if (mine)
        variables.push_back(line);
    }
    for (const auto& [name, value] : env) variables.push_back(name + "=" + value);
    // As in rank_environment(): these override the config's variables.
    for (const std::string& line : host.ready->env)
      if (line.starts_with("OMPI_MCA_pmix_")) variables.push_back(line);
    Rank entry;
    entry.rank = rank;
    entry.host = i;
    entry.output = folder_ / fmt::format("rank{}.out", rank);
    const Fd out(open(entry.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const Fd in(open("/dev/null", O_RDONLY | O_CLOEXEC));
    entry.process = Child(spawn_on(i, argv, variables, in.get(), out.get(), out.get()));
    ranks_.push_back(std::move(entry));
  }
}

bool EmulatedHosts::relay_until(const std::function<bool()>& done,
                                std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!done()) {
    const bool last = Clock::now() > deadline;
    std::vector<pollfd> fds;
    for (Host& host : hosts_) fds.push_back({host.stream.get(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), 5);
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      Host& host = hosts_[i];
      if (!(fds[i].revents & (POLLIN | POLLHUP))) continue;
      char bytes[64 << 10];
      const ssize_t got = read(host.stream.get(), bytes, sizeof bytes);
      if (got <= 0) {
        host.stream.reset();
        continue;
      }
      host.decoder->feed({bytes, static_cast<std::size_t>(got)});
      while (true) {
        auto frame = host.decoder->next();
        REQUIRE(frame);
        if (!*frame) break;
        auto message = wire::decode(**frame);
        REQUIRE(message);
        on_message(i, std::move(*message));
      }
    }
    if (last) return done();
  }
  return true;
}

void EmulatedHosts::on_message(std::size_t index, wire::Message message) {
  Host& host = hosts_[index];
  if (auto* ready = std::get_if<wire::PmixReady>(&message)) {
    host.ready = std::move(*ready);
  } else if (auto* error = std::get_if<wire::RunnerError>(&message)) {
    host.error = std::move(*error);
  } else if (auto* abort = std::get_if<wire::PmixAbort>(&message)) {
    aborts_.push_back(std::move(*abort));
  } else if (auto* notice = std::get_if<wire::PmixNotice>(&message)) {
    notices_.push_back(std::move(*notice));
  } else if (auto* question = std::get_if<wire::PmixNames>(&message)) {
    for (const auto& answer : names_.on_question(index, std::move(*question)))
      for (const std::size_t to : answer.hosts) send(to, answer.message);
  } else if (auto* fence = std::get_if<wire::PmixFence>(&message)) {
    Fence& open = fences_[fence->key];
    open.hosts.push_back(index);
    open.data += fence->data;
    if (open.hosts.size() < fence->node_count) return;
    const Fence closed = std::exchange(open, {});
    fences_.erase(fence->key);
    fences_done_[fence->key] = fence->node_count;
    for (std::size_t participant : closed.hosts)
      send(participant, wire::PmixFenceDone{fence->key, 0, closed.data});
  } else if (auto* request = std::get_if<wire::PmixModexRequest>(&message)) {
    modex_keys_.push_back(request->key);
    modexes_[next_modex_] = {index, request->id};
    request->id = next_modex_++;
    send(host_of_.at(request->rank), *request);
  } else if (auto* reply = std::get_if<wire::PmixModexReply>(&message)) {
    const auto [asker, id] = modexes_.at(reply->id);
    modexes_.erase(reply->id);
    send(asker, wire::PmixModexReply{id, reply->rank, reply->status, reply->data});
  } else {
    FAIL("unexpected " << wire::message_name(message));
  }
}

void EmulatedHosts::send(std::size_t host, const wire::Message& message) {
  const std::string bytes = wire::encode(message);
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t n =
        ::send(hosts_[host].stream.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;  // the server is gone; the test checks how it ended
    sent += static_cast<std::size_t>(n);
  }
}

bool EmulatedHosts::all_ranks_ended() {
  bool all = true;
  for (Rank& rank : ranks_) all = rank.process.poll().has_value() && all;
  return all;
}

bool EmulatedHosts::run(const std::vector<std::string>& argv,
                        const std::vector<std::pair<std::string, std::string>>& env,
                        std::chrono::milliseconds limit) {
  start_ranks(argv, env);
  const auto done = [&] { return all_ranks_ended() || !aborts_.empty(); };
  if (relay_until(done, limit) && aborts_.empty()) return true;
  for (const Rank& rank : ranks_) MESSAGE("rank " << rank.rank << ": " << rank.text());
  return false;
}

void EmulatedHosts::hang_up() {
  for (Host& host : hosts_) host.stream.reset();
}

std::vector<std::string> EmulatedHosts::shm_files(std::size_t host) const {
  std::vector<std::string> names;
  const fs::path path = fmt::format("/proc/{}/root/dev/shm", hosts_[host].namespaces);
  for (const auto& entry : fs::directory_iterator(path))
    names.push_back(entry.path().filename().string());
  return names;
}

}  // namespace sortie::test
