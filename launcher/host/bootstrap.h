// Starts the runner on a host that may not have it yet: one command, one exchange on its stdio,
// over any Transport. See bootstrap_script.h for the host's side.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

/// The runner's executable file, mapped; its hashes are remembered (runner_hashes.h).
class RunnerBinary {
 public:
  /// ErrorCode::not_found or io.
  static Result<RunnerBinary> open(const std::filesystem::path& path);
  RunnerBinary(RunnerBinary&& other) noexcept;
  RunnerBinary& operator=(RunnerBinary&& other) noexcept;
  ~RunnerBinary();

  const std::filesystem::path& path() const { return path_; }
  std::string_view bytes() const { return bytes_; }
  /// Lower-case hex.
  const std::string& sha256() const { return sha256_; }
  /// XXH3 of 64 bits, lower-case hex: what a runner that starts compares its content with.
  const std::string& xxh3() const { return xxh3_; }
  /// As `uname -m` names it: "x86_64"; "any" for a script.
  const std::string& machine() const { return machine_; }

 private:
  RunnerBinary() = default;
  std::filesystem::path path_;
  std::string_view bytes_;  // the mapping
  std::string sha256_, xxh3_;
  std::string machine_;
};

/// Whether a runner stays when its conversation is over (common/wire/serving.h).
enum class RunnerStays { no, yes };

/// Runs the host's runner, pushing `binary` first when the host lacks exactly it; the channel then
/// is the runner's stdio (frames). ErrorCode::runner when it can not be installed or started, with
/// what the host said. Both references must outlive the call. `on_push` is told when the binary
/// starts to travel, and when it has arrived. A connection that has a runner already
/// (Connection::take_runner) gives that one.
boost::asio::awaitable<Result<std::unique_ptr<Channel>>> start_runner(
    Connection& connection, const RunnerBinary& binary,
    std::chrono::milliseconds timeout = std::chrono::seconds(60),
    std::function<void(bool)> on_push = {}, RunnerStays stays = RunnerStays::no);

}  // namespace sortie::launcher
