#include "tests/support/fake_hosts.h"

#include <algorithm>
#include <array>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>

#include "common/asio/spawn.h"
#include "common/asio/token.h"

namespace sortie::test {
namespace asio = boost::asio;
using launcher::Channel;
using launcher::Connection;
using std::chrono::milliseconds;

namespace {

constexpr auto kForever = std::chrono::steady_clock::time_point::max();

class FakeChannel : public Channel {
 public:
  explicit FakeChannel(std::shared_ptr<FakeRunner> runner) : runner_(std::move(runner)) {}
  ~FakeChannel() override { close(); }
  asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) override {
    return runner_->to_launcher.read(buffer);
  }
  asio::awaitable<Result<>> write(std::string_view bytes) override {
    return write_to(runner_, std::string(bytes));
  }
  std::string stderr_tail() const override { return ""; }
  asio::awaitable<Result<ProcessStatus>> wait() override { return ended(); }
  void close() override {
    if (runner_->closed_by_launcher) return;
    runner_->closed_by_launcher = true;
    runner_->to_runner.end();
    runner_->to_launcher.fail("the channel was closed here");
  }

 private:
  static asio::awaitable<Result<>> write_to(std::shared_ptr<FakeRunner> runner, std::string bytes) {
    if (runner->closed_by_launcher) co_return fail(ErrorCode::lost, "closed");
    if (runner->reads_no_more) co_return fail(ErrorCode::lost, "write: it reads no more");
    runner->to_runner.put(bytes);
    co_return Result<>{};
  }
  static asio::awaitable<Result<ProcessStatus>> ended() {
    co_return ProcessStatus{ProcessStatus::Kind::exited, 0, false};
  }
  std::shared_ptr<FakeRunner> runner_;
};

class FakeConnection : public Connection {
 public:
  FakeConnection(FakeTransport& transport, std::string host, std::string address)
      : transport_(transport),
        host_(std::move(host)),
        address_(std::move(address)),
        broken_before_(transport.broken()) {}
  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string) override {
    if (transport_.broken() != broken_before_) co_return fail(ErrorCode::lost, "it is broken");
    co_return transport_.open_channel(host_);
  }
  std::string peer_address() const override { return address_; }
  void close() override {}

 private:
  FakeTransport& transport_;
  std::string host_, address_;
  int broken_before_;
};

/// The host's shell prints a banner and announces the runner that is already installed.
asio::awaitable<void> serve(std::shared_ptr<FakeRunner> runner, FakeHost::Script script) {
  runner->send_bytes("Welcome to the machine\nSORTIE HAVE\n");
  if (script) co_await script(*runner);
}

}  // namespace

ByteStream::ByteStream(const asio::any_io_executor& executor) : ready_(executor, kForever) {}

void ByteStream::put(std::string_view bytes) {
  if (ended_ || error_) return;
  bytes_ += bytes;
  ready_.cancel();
}

void ByteStream::end() {
  ended_ = true;
  ready_.cancel();
}

void ByteStream::fail(std::string what) {
  if (!error_) error_ = Error{ErrorCode::lost, std::move(what)};
  ready_.cancel();
}

asio::awaitable<Result<std::size_t>> ByteStream::read(std::span<char> buffer) {
  while (bytes_.empty() && !ended_ && !error_) co_await ready_.async_wait(kToken);
  if (bytes_.empty() && error_) co_return std::unexpected(*error_);
  const std::size_t count = std::min(buffer.size(), bytes_.size());
  std::memcpy(buffer.data(), bytes_.data(), count);
  bytes_.erase(0, count);
  co_return count;
}

FakeRunner::FakeRunner(asio::any_io_executor executor, std::string host)
    : to_runner(executor), to_launcher(executor), executor_(executor), host_(std::move(host)) {}

void FakeRunner::end() {
  beating_ = false;
  to_launcher.end();
}

void FakeRunner::cut(std::string why) {
  beating_ = false;
  to_launcher.fail(std::move(why));
}

asio::awaitable<std::optional<wire::Message>> FakeRunner::next() {
  std::array<char, 4096> buffer;
  for (;;) {
    auto frame = decoder_.next();
    if (!frame) std::abort();
    if (*frame) {
      auto message = wire::decode(**frame);
      if (!message) std::abort();
      received.emplace_back(Clock::now(), *message);
      co_return std::move(*message);
    }
    const auto count = co_await to_runner.read(buffer);
    if (!count || *count == 0) {
      end();
      co_return std::nullopt;
    }
    decoder_.feed(std::string_view(buffer.data(), *count));
  }
}

asio::awaitable<void> FakeRunner::beat(std::shared_ptr<FakeRunner> self) {
  asio::steady_timer timer(executor_);
  for (std::uint64_t sequence = 1; self->beating_; ++sequence) {
    wire::Heartbeat heartbeat;
    heartbeat.sequence = sequence;
    send(heartbeat);
    timer.expires_after(milliseconds(20));
    co_await timer.async_wait(kToken);
  }
}

void FakeRunner::answer_hello() {
  send(wire::Hello{protocol_version, "build"});
}

asio::awaitable<void> FakeRunner::sleep(milliseconds time) {
  asio::steady_timer timer(executor_, time);
  co_await timer.async_wait(kToken);
}

asio::awaitable<bool> FakeRunner::prepare(milliseconds delay) {
  const bool asked = co_await until<wire::JobSpec>();
  if (!asked) co_return false;
  job = std::get<wire::JobSpec>(received.back().second);
  rank_ended_.assign(job.ranks.size(), false);
  answer_hello();
  beating_ = true;
  spawn(executor_, beat(self_.lock()));
  if (delay.count() > 0) co_await sleep(delay);
  wire::JobReady answer = ready;
  if (answer.hostname.empty()) answer.hostname = host_;
  answer.cpus = 2;
  if (answer.master_port == 0)
    answer.master_port = job.master_port == wire::kAnyPort ? kLeasedPort : job.master_port;
  send(answer);
  co_return true;
}

asio::awaitable<bool> FakeRunner::adopted() {
  const bool asked = co_await until<wire::Adopt>();
  if (!asked) co_return false;
  const wire::Adopt order = std::get<wire::Adopt>(received.back().second);
  answer_hello();
  wire::Adopted answer;
  answer.epoch = order.epoch;
  answer.link = order.link;
  answer.events = order.events;
  send(answer);
  beating_ = true;
  spawn(executor_, beat(self_.lock()));
  co_return true;
}

asio::awaitable<bool> FakeRunner::hold_memory() {
  const bool greeted = co_await until<wire::Hello>();
  if (!greeted) co_return false;
  answer_hello();
  beating_ = true;
  spawn(executor_, beat(self_.lock()));
  const bool asked = co_await until<wire::HoldMemory>();
  if (asked) send(wire::MemoryHeld{"/dev/shm/sortie-1/memory"});
  co_return asked;
}

asio::awaitable<bool> FakeRunner::autostart() {
  const bool prepared = co_await prepare();
  if (!prepared) co_return false;
  for (const wire::RankSpec& rank : job.ranks) send(wire::RankStarted{rank.rank, 1000 + rank.rank});
  co_return true;
}

asio::awaitable<bool> FakeRunner::start() {
  const bool prepared = co_await prepare();
  if (!prepared) co_return false;
  const bool go = co_await until<wire::Start>();
  if (!go) co_return false;
  start_env = std::get<wire::Start>(received.back().second).env;
  for (const wire::RankSpec& rank : job.ranks) send(wire::RankStarted{rank.rank, 1000 + rank.rank});
  co_return true;
}

void FakeRunner::exit_rank(std::uint32_t rank, std::uint32_t code, bool signaled, bool stopped) {
  wire::RankExited exited;
  exited.rank = rank;
  exited.code = code;
  exited.signaled = signaled;
  exited.stopped = stopped;
  end_rank(exited);
}

void FakeRunner::end_rank(const wire::RankExited& exited) {
  for (std::size_t i = 0; i < job.ranks.size(); ++i)
    if (job.ranks[i].rank == exited.rank) rank_ended_[i] = true;
  send(exited);
}

asio::awaitable<void> FakeRunner::finish(bool stopped, int signal) {
  for (std::size_t i = 0; i < job.ranks.size(); ++i)
    if (!rank_ended_[i])
      exit_rank(job.ranks[i].rank, static_cast<std::uint32_t>(signal), signal != 0, stopped);
  send(wire::Finished{});
  co_await until<wire::Goodbye>();
  end();
}

namespace {
Result<std::unique_ptr<Connection>> refused() {
  return fail(ErrorCode::connect, "Connection refused");
}
}  // namespace

FakeTransport::FakeTransport(asio::any_io_executor executor) : executor_(std::move(executor)) {}

FakeTransport::~FakeTransport() = default;

asio::awaitable<Result<std::unique_ptr<Connection>>> FakeTransport::connect(std::string name) {
  const FakeHost& host = hosts_[name];
  most_connecting = std::max(most_connecting, ++connecting);
  const milliseconds delay = runners_.contains(name) ? host.reconnect_delay : host.connect_delay;
  if (delay.count() > 0) {
    asio::steady_timer timer(executor_, delay);
    co_await timer.async_wait(kToken);
  }
  --connecting;
  if (host.connect_error) co_return std::unexpected(*host.connect_error);
  if (runners_.contains(name) && !host.after_loss) co_return refused();
  ++connected;
  std::unique_ptr<Connection> connection =
      std::make_unique<FakeConnection>(*this, name, host.address);
  co_return connection;
}

std::unique_ptr<Channel> FakeTransport::open_channel(const std::string& name) {
  auto runner = std::make_shared<FakeRunner>(executor_, name);
  runner->self_ = runner;
  const bool again = runners_.contains(name);
  (again ? sweepers_ : runners_)[name] = runner;
  const FakeHost& host = hosts_[name];
  runner->ready = host.ready;
  if (again) {
    runner->job = runners_[name]->job;
    runner->rank_ended_ = runners_[name]->rank_ended_;
  }
  spawn(executor_, serve(runner, again ? host.after_loss : host.script));
  return std::make_unique<FakeChannel>(runner);
}

}  // namespace sortie::test
