// The cost of a supervisor per host: a whole run over N simulated hosts, for several N, each in a
// separate process:
//   build/release/bin/bench_simulated_hosts [--hold SECONDS] [--fence BYTES] [--ranks N]
//                                           [--progress] [N...]       (100 1000 10000)
// --fence: the hosts also exchange BYTES each in one PMIx fence, as MPI_Init does.
// --ranks: per host. --progress: ranks train, and heartbeats report their progress; tables with and
// without it show the cost of the watchdog. One other process is all hosts: it answers on Unix
// sockets with the runner's real frames, sends heartbeats every two seconds as runners do, and
// writes a line per rank. So CPU and memory are the supervisor's own: frames, heartbeats, journal,
// logs; all but the SSH connection itself.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <optional>
#include <vector>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/wire/codec.h"
#include "launcher/local/open_files.h"
#include "launcher/supervise/attempt.h"
#include "tests/support/temp_dir.h"

namespace {

namespace asio = boost::asio;
using namespace sortie;
using Unix = asio::local::stream_protocol;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kBeat{2000};

// ---- the hosts ----------------------------------------------------------------------------------

// What the two processes share besides frames.
struct Shared {
  std::atomic<int> started{0};  // ranks
  std::atomic<int> fenced{0};   // hosts that have received the data of all
  std::size_t fence_bytes = 0;
  bool progress = false;
  std::atomic<bool> end{false};
};

struct SimulatedHost {
  SimulatedHost(Unix::socket s, Shared& h)
      : socket(std::move(s)), shared(h), beat(socket.get_executor()) {}
  Unix::socket socket;
  Shared& shared;
  asio::steady_timer beat;
  wire::FrameDecoder decoder;
  std::vector<std::uint32_t> ranks;
  std::uint32_t hosts = 0;
  std::uint64_t sequence = 0;

  // Writes a few hundred bytes at a time, which fit into the socket's buffer.
  void send(const std::string& bytes) {
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer(bytes), ignored);
  }
  void send(const wire::Message& message) { send(wire::encode(message)); }
};

using HostPtr = std::shared_ptr<SimulatedHost>;

/// Reports one step per second for each rank, in changing sections.
void train(const SimulatedHost& host, wire::Heartbeat& beat) {
  for (const std::uint32_t rank : host.ranks) {
    wire::RankProgress place;
    place.rank = rank;
    place.step = 2 * host.sequence;
    place.section = static_cast<std::uint8_t>(2 + (host.sequence + rank) % 5);
    place.sequence = 100 * host.sequence;
    place.standing_ms = 120;
    place.silent_ms = 40;
    place.own_us = 800'000 + rank % 1000;
    place.longest_ms = 400 + rank % 50;
    place.longest_section = 4;
    beat.ranks.push_back(place);
  }
}

void beat(const HostPtr& host) {
  host->beat.expires_after(kBeat);
  host->beat.async_wait([host](const boost::system::error_code& error) {
    if (error) return;
    if (host->shared.end) {
      std::string bytes;
      for (const std::uint32_t rank : host->ranks) {
        wire::RankExited exited;
        exited.rank = rank;
        bytes += wire::encode(exited);
      }
      host->send(bytes + wire::encode(wire::Finished{}));
      return;
    }
    wire::Heartbeat message;
    message.sequence = ++host->sequence;
    if (host->shared.progress) train(*host, message);
    host->send(message);
    beat(host);
  });
}

void start_rank(const HostPtr& host) {
  for (const std::uint32_t rank : host->ranks) {
    wire::Output line;
    line.rank = rank;
    line.bytes = "up\n";
    host->send(wire::encode(wire::RankStarted{rank, 4242}) + wire::encode(line));
    ++host->shared.started;
  }
}

bool answer(const HostPtr& host, const wire::Message& message) {
  if (const auto* job = std::get_if<wire::JobSpec>(&message)) {
    for (const wire::RankSpec& rank : job->ranks) host->ranks.push_back(rank.rank);
    for (const wire::NodeRun& run : job->nodes) host->hosts += run.count;
    wire::JobReady ready;
    ready.hostname = "simulated";
    ready.cpus = 1;
    host->send(wire::encode(wire::Hello{wire::kProtocolVersion, "simulated"}) +
               wire::encode(ready));
    beat(host);
  } else if (std::holds_alternative<wire::Start>(message)) {
    start_rank(host);
    if (const std::size_t bytes = host->shared.fence_bytes; bytes > 0)
      host->send(wire::PmixFence{"all#1", host->hosts, std::string(bytes, 'x')});
  } else if (std::holds_alternative<wire::PmixFenceDone>(message)) {
    ++host->shared.fenced;
  } else if (std::holds_alternative<wire::Goodbye>(message)) {
    return false;
  }
  return true;
}

asio::awaitable<void> serve(HostPtr host) {
  host->send("SORTIE HAVE\n");
  std::array<char, 4096> buffer;
  for (bool on = true; on;) {
    const auto [error, count] = co_await host->socket.async_read_some(asio::buffer(buffer), kToken);
    if (error) break;
    host->decoder.feed({buffer.data(), count});
    for (;;) {
      auto frame = host->decoder.next();
      if (!frame || !*frame) break;
      const auto message = wire::decode(**frame);
      if (message && !answer(host, *message)) on = false;
    }
  }
  host->beat.cancel();
  boost::system::error_code ignored;
  host->socket.close(ignored);
}

asio::awaitable<void> accept_all(Unix::acceptor& acceptor, Shared& shared) {
  for (;;) {
    auto [error, socket] = co_await acceptor.async_accept(kToken);
    if (error) co_return;
    const auto host = std::make_shared<SimulatedHost>(std::move(socket), shared);
    spawn(acceptor.get_executor(), serve(host));
  }
}

[[noreturn]] void be_the_hosts(const std::string& path, Shared& shared, int ready) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  asio::io_context io(1);
  Unix::acceptor acceptor(io, Unix::endpoint(path));
  acceptor.listen(4096);
  (void)!::write(ready, "r", 1);
  spawn(io, accept_all(acceptor, shared));
  io.run();
  ::_exit(0);
}

// ---- the transport to them ----------------------------------------------------------------------

class SocketChannel : public launcher::Channel {
 public:
  explicit SocketChannel(Unix::socket socket)
      : socket_(std::make_shared<Unix::socket>(std::move(socket))) {}
  ~SocketChannel() override { close(); }
  asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) override {
    const auto socket = socket_;
    const auto [error, count] =
        co_await socket->async_read_some(asio::buffer(buffer.data(), buffer.size()), kToken);
    if (error == asio::error::eof) co_return std::size_t{0};
    if (error) co_return fail(ErrorCode::lost, error.message());
    co_return count;
  }
  asio::awaitable<Result<>> write(std::string_view bytes) override {
    const auto socket = socket_;
    const auto [error, count] =
        co_await asio::async_write(*socket, asio::buffer(bytes.data(), bytes.size()), kToken);
    if (error) co_return fail(ErrorCode::lost, error.message());
    co_return Result<>{};
  }
  std::string stderr_tail() const override { return ""; }
  asio::awaitable<Result<ProcessStatus>> wait() override {
    co_return ProcessStatus{ProcessStatus::Kind::exited, 0, false};
  }
  void close() override {
    boost::system::error_code ignored;
    socket_->close(ignored);
  }

 private:
  std::shared_ptr<Unix::socket> socket_;
};

class SocketConnection : public launcher::Connection {
 public:
  SocketConnection(asio::any_io_executor executor, std::string path)
      : executor_(std::move(executor)), path_(std::move(path)) {}
  asio::awaitable<Result<std::unique_ptr<launcher::Channel>>> exec(std::string) override {
    Unix::socket socket(executor_);
    const Unix::endpoint endpoint(path_);
    const auto [error] = co_await socket.async_connect(endpoint, kToken);
    if (error) co_return fail(ErrorCode::connect, error.message());
    std::unique_ptr<launcher::Channel> channel = std::make_unique<SocketChannel>(std::move(socket));
    co_return channel;
  }
  std::string peer_address() const override { return "192.0.2.1"; }
  void close() override {}

 private:
  asio::any_io_executor executor_;
  std::string path_;
};

class SocketTransport : public launcher::Transport {
 public:
  SocketTransport(asio::any_io_executor executor, std::string path)
      : executor_(std::move(executor)), path_(std::move(path)) {}
  asio::awaitable<Result<std::unique_ptr<launcher::Connection>>> connect(std::string) override {
    std::unique_ptr<launcher::Connection> connection =
        std::make_unique<SocketConnection>(executor_, path_);
    co_return connection;
  }

 private:
  asio::any_io_executor executor_;
  std::string path_;
};

// ---- the measurement ----------------------------------------------------------------------------

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double resident_kib() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1024;
}

struct Row {
  int hosts = 0;
  double start_s = 0, start_cpu = 0, kib = 0, peak_kib = 0, idle_cpu = 0, end_cpu = 0;
};

struct Load {
  int ranks = 1;  // per host
  std::size_t fence_bytes = 0;
  bool progress = false;
};

Row measure(int hosts, milliseconds hold, const Load& load) {
  const std::size_t fence_bytes = load.fence_bytes;
  launcher::raise_open_file_limit();
  std::signal(SIGPIPE, SIG_IGN);
  // In memory: on a disk, after the removal of many files, ext4 takes 0.1 ms for each new one.
  const test::ScopedTempDir dir("/dev/shm");
  const std::string path = dir.str("hosts");
  void* page =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) std::abort();
  auto* shared = new (page) Shared;
  shared->fence_bytes = fence_bytes;
  shared->progress = load.progress;
  int ready[2];
  if (::pipe(ready) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) be_the_hosts(path, *shared, ready[1]);
  char byte = 0;
  (void)!::read(ready[0], &byte, 1);

  test::write_text(dir / "runner", "#!/bin/sh\n");
  config::JobConfig job;
  job.runner.program = {"true"};
  std::vector<int> slots(static_cast<std::size_t>(load.ranks));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<config::HostSlots> list;
  for (int i = 0; i < hosts; ++i) list.push_back({fmt::format("node{:05d}", i), slots});
  const auto binary = launcher::RunnerBinary::open(dir / "runner");
  const auto plan = launcher::make_plan(job, list, {});
  auto folder = launcher::RunFolder::create(dir.path(), false);
  if (!binary || !plan || !folder) std::abort();
  const Fd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  launcher::Console::Style style;
  style.out = style.err = null.get();
  launcher::Console console(style);

  Row row{hosts};
  asio::io_context io(1);
  SocketTransport transport(io.get_executor(), path);
  const double memory_before = resident_kib();
  const double cpu_before = cpu_seconds();
  const auto begun = Clock::now();
  launcher::Attempt attempt({io.get_executor(), transport, *binary, console, *folder}, job, *plan);
  std::optional<launcher::Verdict> verdict;
  asio::co_spawn(io, attempt.run(), [&](std::exception_ptr, launcher::Verdict result) {
    verdict = std::move(result);
    io.stop();
  });
  // Once all ranks have written their line, the start is over and only heartbeats continue.
  while (!verdict &&
         (shared->started < hosts * load.ranks || (fence_bytes > 0 && shared->fenced < hosts))) {
    io.run_for(milliseconds(20));
    io.restart();
  }
  row.start_s = std::chrono::duration<double>(Clock::now() - begun).count();
  row.start_cpu = cpu_seconds() - cpu_before;
  io.run_for(milliseconds(200));
  io.restart();
  const double cpu_idle = cpu_seconds();
  io.run_for(hold);
  row.idle_cpu = (cpu_seconds() - cpu_idle) / std::chrono::duration<double>(hold).count();
  row.kib = resident_kib() - memory_before;
  const double cpu_end = cpu_seconds();
  shared->end = true;
  while (!verdict) {
    io.restart();
    io.run_for(milliseconds(1000));
  }
  row.end_cpu = cpu_seconds() - cpu_end;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  row.peak_kib = static_cast<double>(usage.ru_maxrss) - memory_before;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (verdict->exit_code != 0) {
    fmt::print(stderr, "{} hosts: exit code {}: {}\n", hosts, verdict->exit_code,
               verdict->text.substr(0, 500));
    std::exit(1);
  }
  return row;
}

void print(const Row& row) {
  const double n = row.hosts;
  fmt::print("{:>6} {:>8.2f} {:>14.0f} {:>12.1f} {:>12.1f} {:>18.2f} {:>12.0f}\n", row.hosts,
             row.start_s, row.start_cpu / n * 1e6, row.kib / n, row.peak_kib / n,
             row.idle_cpu / n * 1e6, row.end_cpu / n * 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> counts;
  milliseconds hold{10000};
  Load load;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--hold" && i + 1 < argc)
      hold = milliseconds(static_cast<std::int64_t>(std::atof(argv[++i]) * 1000));
    else if (std::string_view(argv[i]) == "--fence" && i + 1 < argc)
      load.fence_bytes = static_cast<std::size_t>(std::atoll(argv[++i]));
    else if (std::string_view(argv[i]) == "--ranks" && i + 1 < argc)
      load.ranks = std::atoi(argv[++i]);
    else if (std::string_view(argv[i]) == "--progress")
      load.progress = true;
    else
      counts.push_back(std::atoi(argv[i]));
  }
  if (counts.empty()) counts = {100, 1000, 10000};
  fmt::print("{:>6} {:>8} {:>14} {:>12} {:>12} {:>18} {:>12}\n", "hosts", "start s", "CPU us/host",
             "KiB/host", "peak", "idle CPU us/host/s", "end us/host");
  std::fflush(stdout);
  for (const int count : counts) {
    const pid_t child = ::fork();
    if (child == 0) {
      print(measure(count, hold, load));
      return 0;
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) return 1;
  }
  return 0;
}
