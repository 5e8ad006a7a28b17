#include "launcher/local/local_transport.h"

#include <fmt/core.h>

#include <vector>

#include "launcher/local/child_process.h"
#include "launcher/local/open_files.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace {

class LocalConnection : public Connection {
 public:
  explicit LocalConnection(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  ~LocalConnection() override { close(); }

  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) override {
    auto process = start(std::move(command));
    if (!process) co_return std::unexpected(std::move(process).error());
    processes_.push_back(*process);
    std::unique_ptr<Channel> channel = std::make_unique<ProcessChannel>(std::move(*process));
    co_return channel;
  }
  std::string peer_address() const override { return "127.0.0.1"; }
  void close() override {
    closed_ = true;
    for (const auto& weak : processes_)
      if (const auto process = weak.lock()) process->close();
    processes_.clear();
  }

 private:
  Result<std::shared_ptr<ChildProcess>> start(std::string command) {
    if (closed_) return fail(ErrorCode::lost, "the connection is closed");
    if (const auto limit = original_open_file_limit())
      command = fmt::format("ulimit -S -n {}; {}", *limit, command);
    std::vector<std::string> argv = {"/bin/sh", "-c", std::move(command)};
    auto child = ChildProcess::start(executor_, std::move(argv), OnClose::eof);
    if (!child && child.error().code == ErrorCode::not_found)
      child.error().code = ErrorCode::channel;
    return child;
  }

  asio::any_io_executor executor_;
  std::vector<std::weak_ptr<ChildProcess>> processes_;
  bool closed_ = false;
};

class LocalTransport : public Transport {
 public:
  explicit LocalTransport(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string) override {
    std::unique_ptr<Connection> connection = std::make_unique<LocalConnection>(executor_);
    co_return connection;
  }

 private:
  asio::any_io_executor executor_;
};

}  // namespace

std::unique_ptr<Transport> make_local_transport(asio::any_io_executor executor) {
  return std::make_unique<LocalTransport>(std::move(executor));
}

}  // namespace sortie::launcher
