#include "launcher/host/bootstrap.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "common/base/fd.h"
#include "launcher/host/bootstrap_script.h"
#include "launcher/host/runner_hashes.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::size_t kMaxNoise = 64 * 1024;  // limit of shell start-up output before the tag
constexpr std::size_t kMaxAnswer = 1000;      // limit of a host's text in a message
constexpr std::size_t kKeptPiece = 8 * 1024;
constexpr std::string_view kTag = "SORTIE ";

std::string machine_of(std::string_view bytes) {
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header || !bytes.starts_with(ELFMAG)) return "any";
  std::memcpy(&header, bytes.data(), sizeof header);
  switch (header.e_machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_RISCV:
      return "riscv64";
    case EM_PPC64:
      return "ppc64le";
    default:
      return "any";
  }
}

// The first frames of the runner may have been read together with the line that announces it; this
// channel returns them first.
class RestFirstChannel : public Channel {
 public:
  RestFirstChannel(std::unique_ptr<Channel> channel, std::string rest)
      : channel_(std::move(channel)), rest_(std::move(rest)) {}

  asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) override {
    if (rest_.empty()) return channel_->read_some(buffer);
    return take_rest(buffer);
  }
  asio::awaitable<Result<>> write(std::string_view bytes) override {
    return channel_->write(bytes);
  }
  std::string stderr_tail() const override { return channel_->stderr_tail(); }
  asio::awaitable<Result<ProcessStatus>> wait() override { return channel_->wait(); }
  void close() override { channel_->close(); }

 private:
  asio::awaitable<Result<std::size_t>> take_rest(std::span<char> buffer) {
    const std::size_t count = std::min(buffer.size(), rest_.size());
    std::memcpy(buffer.data(), rest_.data(), count);
    rest_.erase(0, count);
    co_return count;
  }

  std::unique_ptr<Channel> channel_;
  std::string rest_;
};

// The exchange on a new channel, up to the runner's first byte.
struct Exchange {
  std::unique_ptr<Channel> channel;
  std::string unread;  // received, not yet parsed
  std::string noise;   // lines without the tag

  // Returns the answer after "SORTIE ". nullopt if the stream ended (or broke) before.
  asio::awaitable<std::optional<std::string>> next_answer() {
    std::array<char, 16 * 1024> buffer;
    for (;;) {
      const std::size_t end = unread.find('\n');
      if (end != std::string::npos) {
        std::string line = unread.substr(0, end);
        unread.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        if (line.starts_with(kTag)) co_return line.substr(kTag.size());
        if (!line.empty()) noise += line + '\n';
        continue;
      }
      if (noise.size() + unread.size() > kMaxNoise) break;
      const auto count = co_await channel->read_some(buffer);
      if (!count || *count == 0) break;
      unread.append(buffer.data(), *count);
    }
    noise += unread;
    co_return std::nullopt;
  }

  // Closes the channel and discards its output.
  void restart() {
    channel->close();
    channel.reset();
    unread.clear();
    noise.clear();
  }

  // The end of the host's output, for messages: short, on one line.
  std::string said() const {
    std::string text;
    for (const auto& [name, output] :
         {std::pair{"it printed", noise}, std::pair{"on stderr", channel->stderr_tail()}}) {
      std::string tail = output.substr(output.size() > 300 ? output.size() - 300 : 0);
      while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
      std::ranges::replace(tail, '\n', '|');
      std::erase_if(tail, [](char c) { return static_cast<unsigned char>(c) < 32; });
      if (!tail.empty()) text += fmt::format("; {}: '{}'", name, tail);
    }
    return text;
  }
};

// Every login shell (sh, bash, zsh, csh, fish) parses this the same way; the hash is hexadecimal.
std::string direct_command(const RunnerBinary& binary, RunnerStays stays) {
  return fmt::format("exec /bin/sh -c '{}{}{}{}{}'", kDirectHead, binary.sha256(), kDirectTail,
                     binary.xxh3(), stays == RunnerStays::yes ? kDirectServe : kDirectOnce);
}

// sshd frees a session slightly after it has reported its end, and may allow only one
// (MaxSessions).
asio::awaitable<Result<std::unique_ptr<Channel>>> exec_when_free(Connection& connection) {
  constexpr int kTries = 20;
  asio::steady_timer timer(co_await asio::this_coro::executor);
  for (int i = 1;; ++i) {
    auto channel = co_await connection.exec(kBootstrapCommand);
    if (channel || channel.error().code != ErrorCode::channel || i == kTries) co_return channel;
    timer.expires_after(std::chrono::milliseconds(50));
    co_await timer.async_wait(asio::use_awaitable);
  }
}

/// The script and the line that it reads.
std::string request_for(const RunnerBinary& binary, RunnerStays stays, bool anew) {
  return fmt::format("{}\n{} {} {} {}{}\n", kBootstrapScript, binary.sha256(),
                     binary.bytes().size(), binary.machine(),
                     stays == RunnerStays::yes ? "serve" : "once", anew ? " anew" : "");
}

/// Sends the binary, in small pieces if the connection is kept: libssh never shrinks its buffer.
asio::awaitable<Result<>> send_binary(Channel& channel, const RunnerBinary& binary,
                                      RunnerStays stays) {
  std::string_view bytes = binary.bytes();
  const std::size_t piece = stays == RunnerStays::yes ? kKeptPiece : bytes.size();
  Result<> sent;
  while (sent && !bytes.empty()) {
    sent = co_await channel.write(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(bytes.size(), piece));
  }
  co_return sent;
}

}  // namespace

Result<RunnerBinary> RunnerBinary::open(const std::filesystem::path& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0)
    return std::unexpected(os_error(errno, "runner " + path.string(),
                                    errno == ENOENT ? ErrorCode::not_found : ErrorCode::io));
  if (!S_ISREG(status.st_mode) || status.st_size == 0)
    return fail(ErrorCode::io, fmt::format("runner {}: is not a file with content", path.string()));
  const auto size = static_cast<std::size_t>(status.st_size);
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (bytes == MAP_FAILED) return std::unexpected(os_error(errno, "map runner " + path.string()));
  RunnerBinary binary;
  binary.path_ = path;
  binary.bytes_ = {static_cast<const char*>(bytes), size};
  RunnerHashes hashes = hashes_of_runner(binary.bytes_, status);
  binary.sha256_ = std::move(hashes.sha256);
  binary.xxh3_ = std::move(hashes.xxh3);
  binary.machine_ = machine_of(binary.bytes_);
  return binary;
}

RunnerBinary::RunnerBinary(RunnerBinary&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      sha256_(std::move(other.sha256_)),
      xxh3_(std::move(other.xxh3_)),
      machine_(std::move(other.machine_)) {}

RunnerBinary& RunnerBinary::operator=(RunnerBinary&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(sha256_, other.sha256_);
  std::swap(xxh3_, other.xxh3_);
  std::swap(machine_, other.machine_);
  return *this;
}

RunnerBinary::~RunnerBinary() {
  if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

asio::awaitable<Result<std::unique_ptr<Channel>>> start_runner(Connection& connection,
                                                               const RunnerBinary& binary,
                                                               std::chrono::milliseconds timeout,
                                                               std::function<void(bool)> on_push,
                                                               RunnerStays stays) {
  if (auto there = connection.take_runner()) co_return there;
  const auto executor = co_await asio::this_coro::executor;
  // Shared with the timer, which may fire after this coroutine has ended.
  const auto exchange = std::make_shared<Exchange>();
  const auto late = std::make_shared<bool>(false);
  asio::steady_timer timer(executor, timeout);
  timer.async_wait([exchange, late](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    *late = true;
    if (exchange->channel) exchange->channel->close();
  });
  const auto failed = [&](std::string_view what) {
    return fail(ErrorCode::runner, fmt::format("{}{}", what, exchange->said()));
  };
  const auto timed_out = [&](std::string_view what) {
    return failed(
        fmt::format("start the runner: {} within {} ms; see whether the shell's start-up "
                    "files on the host end, or raise runner.startup_timeout",
                    what, timeout.count()));
  };

  const auto running = [&] {
    timer.cancel();
    return std::make_unique<RestFirstChannel>(std::move(exchange->channel),
                                              std::move(exchange->unread));
  };

  // Most hosts have the runner: then only the login shell is started.
  auto channel = co_await connection.exec(direct_command(binary, stays));
  if (!channel) co_return std::unexpected(std::move(channel).error());
  exchange->channel = std::move(*channel);
  const auto direct = co_await exchange->next_answer();
  if (direct && *direct == "HAVE") {
    std::unique_ptr<Channel> started = running();
    co_return started;
  }
  if (*late) co_return timed_out("no answer");
  // An sshd may allow one session at a time: wait for the end of this one before the next.
  if (exchange->noise.size() <= kMaxNoise) co_await exchange->channel->wait();
  if (*late) co_return timed_out("no answer");

  const std::string install_line = fmt::format("{}\n", kInstallScript);
  for (bool anew = false;; anew = true) {
    exchange->restart();
    channel = co_await exec_when_free(connection);
    if (!channel) co_return std::unexpected(std::move(channel).error());
    exchange->channel = std::move(*channel);
    if (*late) co_return timed_out("no answer");
    auto sent = co_await exchange->channel->write(request_for(binary, stays, anew));
    bool asked = false, pushed = false;
    while (sent) {
      const auto answer = co_await exchange->next_answer();
      if (pushed && on_push) on_push(false);
      if (!answer) break;
      if (*answer == "HAVE") {
        std::unique_ptr<Channel> started = running();
        co_return started;
      }
      if (*answer == "NEED" && !asked) {
        asked = true;
        sent = co_await exchange->channel->write(install_line);
        continue;
      }
      if (*answer == "SEND" && asked && !pushed) {
        pushed = true;
        if (on_push) on_push(true);
        sent = co_await send_binary(*exchange->channel, binary, stays);
        continue;
      }
      if (answer->starts_with("FAIL "))
        co_return failed(
            fmt::format("install the runner: {}; make a folder that is writable and not "
                        "mounted noexec, and name it with XDG_CACHE_HOME there",
                        answer->substr(5, kMaxAnswer)));
      co_return failed(
          fmt::format("start the runner: strange answer '{}'", answer->substr(0, kMaxAnswer)));
    }
    if (*late) co_return timed_out(pushed ? "it was not installed" : "no answer");
    if (exchange->noise.size() > kMaxNoise)
      co_return failed(
          fmt::format("start the runner: {} bytes of other output came instead of an "
                      "answer; keep the shell's start-up files silent for commands",
                      exchange->noise.size()));
    const auto status = co_await exchange->channel->wait();
    if (*late) co_return timed_out("no answer");
    if (!status) co_return std::unexpected(with_context(status.error(), "start the runner"));
    // The script may have started a runner whose file is damaged so that it can not even check its
    // content: the second pass replaces it.
    if (anew || pushed)
      co_return failed(
          fmt::format("start the runner: the shell on the host ended ({}) before it answered; "
                      "see whether `ssh HOST true` works and /bin/sh is there",
                      status->to_string()));
  }
}

}  // namespace sortie::launcher
