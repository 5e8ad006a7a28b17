// Emulates several hosts on this machine for tests of sortie-pmix. Each has its own hostname and
// its own /dev/shm, so that Open MPI takes them for different hosts. EmulatedHosts acts for all of
// them as the runner, which starts a sortie-pmix and the ranks, and as the launcher, which relays
// fences and modex requests.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/process_status.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"
#include "launcher/mpi/pmix_names.h"

namespace sortie::test {

using Clock = std::chrono::steady_clock;

/// A child process. The destructor kills and reaps it.
class Child {
 public:
  Child() = default;
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(Child&& other) noexcept { *this = std::move(other); }
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(status_, other.status_);
    return *this;
  }
  ~Child();

  pid_t pid() const { return pid_; }
  /// Exit status; nullopt while it runs.
  std::optional<ProcessStatus> poll();
  /// Waits for the exit, at most `limit`.
  std::optional<ProcessStatus> wait(std::chrono::milliseconds limit);

 private:
  pid_t pid_ = -1;
  std::optional<ProcessStatus> status_;
};

struct Rank {
  std::uint32_t rank = 0;
  std::size_t host = 0;
  Child process;
  std::filesystem::path output;  // what it wrote to stdout and stderr
  std::string text() const;
};

class EmulatedHosts {
 public:
  /// Host i has the ranks ranks[i].
  explicit EmulatedHosts(std::vector<std::vector<std::uint32_t>> ranks);
  ~EmulatedHosts();

  std::size_t count() const { return hosts_.size(); }
  std::uint32_t world_size() const { return world_size_; }
  /// The setup that start_servers() sends to a host. Change it before that call.
  wire::PmixSetup& setup(std::size_t host) { return hosts_[host].setup; }

  /// Runs this job on the hosts of another one. Call it before start_servers().
  void share_hosts_of(const EmulatedHosts& other);

  /// Starts a sortie-pmix on each host and waits until all are ready. Returns the first error if
  /// one is not, otherwise nullopt.
  std::optional<std::string> start_servers(
      const std::vector<std::pair<std::string, std::string>>& env = {});
  /// Starts all ranks, each with the environment that the server of its host gave.
  void start_ranks(const std::vector<std::string>& argv,
                   const std::vector<std::pair<std::string, std::string>>& env = {});
  /// Relays messages until done() is true or `limit` has passed; returns done().
  bool relay_until(const std::function<bool()>& done, std::chrono::milliseconds limit);
  /// Calls start_ranks() and relays until all ranks have ended. Returns false if `limit` passes or
  /// a rank aborts first, which would end a real job; then the output of the ranks is added to the
  /// test's messages.
  bool run(const std::vector<std::string>& argv,
           const std::vector<std::pair<std::string, std::string>>& env = {},
           std::chrono::milliseconds limit = std::chrono::seconds(60));
  bool all_ranks_ended();

  /// Closes the streams of all servers, as if the runner had exited.
  void hang_up();
  Child& server(std::size_t host) { return hosts_[host].server; }
  const wire::PmixReady& ready(std::size_t host) const { return *hosts_[host].ready; }
  /// Messages that a launcher acts on, in order of arrival.
  const std::vector<wire::PmixAbort>& aborts() const { return aborts_; }
  const std::vector<wire::PmixNotice>& notices() const { return notices_; }
  const std::map<std::string, std::uint32_t>& fences() const { return fences_done_; }
  std::size_t modex_requests() const { return modex_keys_.size(); }
  /// The key of each direct modex request relayed to the rank's host.
  const std::vector<std::string>& modex_keys() const { return modex_keys_; }
  std::vector<Rank>& ranks() { return ranks_; }
  std::filesystem::path tmp_dir(std::size_t host) const { return hosts_[host].setup.tmp_dir; }
  /// File names in the /dev/shm of a host.
  std::vector<std::string> shm_files(std::size_t host) const;

 private:
  struct Host {
    wire::PmixSetup setup;
    Child holder;           // keeps the host's namespaces
    pid_t namespaces = -1;  // the holder, of this job or of the one that shares its hosts
    Child server;
    Fd stream;
    std::unique_ptr<wire::FrameDecoder> decoder;
    std::optional<wire::PmixReady> ready;
    std::optional<wire::RunnerError> error;
  };
  struct Fence {
    std::vector<std::size_t> hosts;
    std::string data;
  };

  pid_t spawn_on(std::size_t host, const std::vector<std::string>& argv,
                 const std::vector<std::string>& env, int in, int out, int err);
  void on_message(std::size_t host, wire::Message message);
  void send(std::size_t host, const wire::Message& message);

  std::filesystem::path folder_;
  std::uint32_t world_size_ = 0;
  std::vector<Host> hosts_;
  std::vector<std::size_t> host_of_;
  std::vector<Rank> ranks_;
  std::map<std::string, Fence> fences_;
  std::map<std::string, std::uint32_t> fences_done_;
  std::map<std::uint64_t, std::pair<std::size_t, std::uint64_t>> modexes_;
  std::uint64_t next_modex_ = 1000;
  std::vector<std::string> modex_keys_;
  std::vector<wire::PmixAbort> aborts_;
  std::vector<wire::PmixNotice> notices_;
  launcher::PmixNameTable names_;  // as in the launcher
};

}  // namespace sortie::test
